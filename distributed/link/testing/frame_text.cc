// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/testing/frame_text.h"

#include <type_traits>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/coding.h"
#include "core/dtype.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/wire_tensor.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

absl::string_view Text(WireTensor::Form form) {
  switch (form) {
    case WireTensor::Form::kRaw:
      return "";
    case WireTensor::Form::kNarrow:
      return " narrow";
    case WireTensor::Form::kProto:
      return " proto";
  }
  return " of no form";
}

std::string Text(const HelloFrame& f) {
  return absl::StrCat(
      "HELLO version=", f.version, " task=", f.task, " incarnation=", f.incarnation,
      " clock=", f.clock_ns, " window=", f.window_bytes,
      f.pool_bytes == 0 ? "" : absl::StrCat(" pool=", f.pool_bytes),
      f.offer.empty() ? "" : absl::StrCat(" offer=", absl::BytesToHexString(f.offer)),
      f.takes_offer ? " takes" : "", f.kept_bytes == 0 ? "" : absl::StrCat(" kept=", f.kept_bytes));
}
std::string Text(const BindFrame& f) {
  return absl::StrCat("BIND number=", f.number, " session=", f.session_handle,
                      " graph=", f.graph_handle);
}
std::string Text(const UnbindFrame& f) { return absl::StrCat("UNBIND number=", f.number); }
std::string Text(const RunFrame& f) {
  return absl::StrCat("RUN step=", f.step_id, " number=", f.number, f.wants_trace ? " trace" : "",
                      f.wants_graphs ? " graphs" : "", " timeout_us=", f.timeout_us,
                      " args=", f.num_args);
}
std::string Text(const TensorsFrame& f) {
  std::string text =
      absl::StrCat("TENSORS step=", f.step_id, " purpose=", static_cast<int>(f.purpose),
                   " fingerprint=", f.fingerprint);
  if (f.credit_bytes != 0) absl::StrAppend(&text, " credit=", f.credit_bytes);
  for (const TensorEntry& entry : f.tensors) {
    absl::StrAppend(&text, " | index=", entry.index);
    if (entry.in_loop) {
      absl::StrAppend(&text, " frame=", entry.frame_id, " iteration=", entry.iteration);
    }
    if (entry.ready_ns != 0 || entry.left_ns != 0) {
      absl::StrAppend(&text, " ready=", entry.ready_ns, " left=", entry.left_ns);
    }
    if (entry.is_kept) {
      absl::StrAppend(&text, " kept=", entry.keep_number);
      continue;
    }
    if (entry.keep_number != 0) absl::StrAppend(&text, " keep=", entry.keep_number);
    if (entry.is_dead) {
      absl::StrAppend(&text, " dead");
    } else if (entry.transfer != 0) {
      absl::StrAppend(&text, " transfer=", entry.transfer, Text(entry.form), " ",
                      DTypeName(entry.dtype), entry.shape.ToString(), " bytes=", entry.num_bytes);
    } else if (entry.segment != 0) {
      absl::StrAppend(&text, " segment=", entry.segment, " offset=", entry.offset, Text(entry.form),
                      " ", DTypeName(entry.dtype), entry.shape.ToString(),
                      " bytes=", entry.num_bytes);
    } else {
      absl::StrAppend(&text, Text(entry.value.form()), " ", DTypeName(entry.value.dtype()),
                      entry.value.shape().ToString(), " ",
                      absl::BytesToHexString(entry.value.bytes()));
    }
  }
  return text;
}
std::string Text(const ChunkFrame& f) {
  return absl::StrCat("CHUNK transfer=", f.transfer, " offset=", f.offset, " bytes=", f.num_bytes);
}
std::string Text(const EndFrame& f) {
  return absl::StrCat("END step=", f.step_id, " ", f.status.ToString(), " results=", f.num_results,
                      f.has_report ? " report" : "");
}
std::string Text(const CancelFrame& f) {
  return absl::StrCat("CANCEL step=", f.step_id, " ", f.status.ToString());
}
std::string Text(const ReceivedFrame& f) {
  std::string text = absl::StrCat("RECEIVED credit=", f.credit_bytes);
  for (const ReceivedFrame::Step& step : f.steps) {
    absl::StrAppend(&text, " step=", step.step_id, ":", step.tensors);
  }
  return text;
}
std::string Text(const PingFrame& f) { return absl::StrCat("PING clock=", f.clock_ns); }
std::string Text(const PongFrame& f) {
  return absl::StrCat("PONG ping=", f.ping_clock_ns, " clock=", f.clock_ns);
}
std::string Text(const ByeFrame& f) { return absl::StrCat("BYE ", f.status.ToString()); }
std::string Text(const SegmentFrame& f) {
  return absl::StrCat("SEGMENT segment=", f.segment, " bytes=", f.num_bytes);
}
std::string Text(const ReleaseFrame& f) {
  std::string text = "RELEASE";
  for (const ReleaseFrame::Block& block : f.blocks) {
    absl::StrAppend(&text, " ", block.segment, ":", block.offset);
  }
  return text;
}
std::string Text(const ForgetFrame& f) {
  std::string text = "FORGET";
  for (const uint64_t number : f.numbers) absl::StrAppend(&text, " ", number);
  return text;
}

}  // namespace

std::string FrameText(const LinkFrame& frame) {
  return std::visit([](const auto& f) { return Text(f); }, frame);
}

std::string FrameBytes(const LinkFrame& frame) {
  FrameWriter writer;
  std::visit(
      [&writer](const auto& f) {
        if constexpr (std::is_same_v<std::decay_t<decltype(f)>, ChunkFrame>) {
          ADD_FAILURE() << "the bytes of a CHUNK are not in the frame";
        } else {
          EXPECT_OK(writer.Add(f));
        }
      },
      frame);
  return writer.Finish().ToString();
}

std::string RawFrame(uint8_t kind, absl::string_view head, absl::string_view payload) {
  std::string bytes(1, static_cast<char>(kind));
  PutVarint64(&bytes, head.size());
  PutVarint64(&bytes, payload.size());
  bytes.append(head.data(), head.size());
  bytes.append(payload.data(), payload.size());
  return bytes;
}

}  // namespace millrace

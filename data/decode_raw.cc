// SPDX-License-Identifier: Apache-2.0
#include "data/decode_raw.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/byte_reader.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- Numbers -------------------------------------------------------------------------------------

// Bytes of one number: of a complex one each part is a number.
size_t NumberBytes(DType dtype) {
  return IsComplex(dtype) ? DTypeSize(dtype) / 2 : DTypeSize(dtype);
}

void SwapBytes(absl::Span<char> bytes, size_t size) {
  for (size_t i = 0; i < bytes.size(); i += size) {
    std::reverse(bytes.begin() + static_cast<ptrdiff_t>(i),
                 bytes.begin() + static_cast<ptrdiff_t>(i + size));
  }
}

// What is in a row of bytes that were copied from a string.
void MakeNumbers(DType dtype, bool little_endian, absl::Span<char> row) {
  const size_t size = NumberBytes(dtype);
  if (!little_endian && size > 1) SwapBytes(row, size);
  if (dtype == DT_BOOL) {  // only 0 and 1 are values of a bool
    for (char& byte : row) byte = byte != 0 ? 1 : 0;
  }
}

// Nanoseconds for a string, and for each of its bytes.
double RowNs(size_t bytes) { return 10 + 0.2 * static_cast<double>(bytes); }

struct DecodeRawRule {
  DType out_type = DT_INVALID;
  bool little_endian = true;

  Status Init(const NodeAttrs& attrs) {
    return ReadAttrs(attrs, "out_type", &out_type, "little_endian", &little_endian);
  }
  // How many numbers there are is in the strings.
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    if (!c->input(0).has_rank()) return PartialShape();
    std::vector<int64_t> dims(c->input(0).dims().begin(), c->input(0).dims().end());
    dims.push_back(-1);
    return PartialShape::Make(dims);
  }
};

Status RunDecodeRaw(KernelContext* ctx, const DecodeRawRule& rule) {
  const Tensor& input = ctx->input(0);
  const absl::Span<const std::string> texts = input.raw<std::string>();
  const size_t row = texts.empty() ? 0 : texts[0].size();
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].size() == row) continue;
    return InvalidArgument("DecodeRaw requires input strings to all be the same size, but element ",
                           i, " has size ", texts[i].size(), " != ", row);
  }
  const size_t size = DTypeSize(rule.out_type);
  if (row % size != 0) {
    return InvalidArgument("Input to DecodeRaw has length ", row, " that is not a multiple of ",
                           size, ", the size of ", rule.out_type);
  }
  std::vector<int64_t> dims(input.shape().dims().begin(), input.shape().dims().end());
  dims.push_back(static_cast<int64_t>(row / size));
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0, shape));
  if (output->num_elements() == 0) return absl::OkStatus();
  const absl::Span<char> out = output->mutable_bytes();
  ctx->ParallelFor(static_cast<int64_t>(texts.size()), RowNs(row), [&](int64_t begin, int64_t end) {
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const absl::Span<char> to = out.subspan(i * row, row);
      std::memcpy(to.data(), texts[i].data(), row);
      MakeNumbers(rule.out_type, rule.little_endian, to);
    }
  });
  return absl::OkStatus();
}

const OpRegistration kDecodeRaw =
    OpSpec("DecodeRaw", "bytes: string -> output: out_type",
           "out_type: {half, float, double, int32, uint16, uint8, int16, int8, int64, complex64, "
           "complex128, bool}; little_endian: bool = true")
        .With(RuledKernelFor<DecodeRawRule>(RunDecodeRaw))
        .NotDifferentiable();

struct DecodePaddedRawRule {
  DType out_type = DT_INVALID;
  bool little_endian = true;

  Status Init(const NodeAttrs& attrs) {
    return ReadAttrs(attrs, "out_type", &out_type, "little_endian", &little_endian);
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> length, c->IntScalar(1, "fixed_length"));
    const int64_t size = static_cast<int64_t>(DTypeSize(out_type));
    if (length && *length <= 0) {
      return InvalidArgument("fixed_length (", *length, ") must be greater than zero");
    }
    if (length && *length % size != 0) {
      return InvalidArgument("fixed_length (", *length,
                             ") must be a multiple of the size of out_type (", size, ")");
    }
    if (!c->input(0).has_rank()) return PartialShape();
    std::vector<int64_t> dims(c->input(0).dims().begin(), c->input(0).dims().end());
    dims.push_back(length ? *length / size : -1);
    return PartialShape::Make(dims);
  }
};

Status RunDecodePaddedRaw(KernelContext* ctx, const DecodePaddedRawRule& rule) {
  const absl::Span<const std::string> texts = ctx->input(0).raw<std::string>();
  const size_t row = static_cast<size_t>(ctx->input(1).raw_scalar<int32_t>());
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0));
  if (output->num_elements() == 0) return absl::OkStatus();
  const absl::Span<char> out = output->mutable_bytes();
  ctx->ParallelFor(static_cast<int64_t>(texts.size()), RowNs(row), [&](int64_t begin, int64_t end) {
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const absl::Span<char> to = out.subspan(i * row, row);
      const size_t there = std::min(row, texts[i].size());
      std::memcpy(to.data(), texts[i].data(), there);
      std::memset(to.data() + there, 0, row - there);
      MakeNumbers(rule.out_type, rule.little_endian, to);
    }
  });
  return absl::OkStatus();
}

const OpRegistration kDecodePaddedRaw =
    OpSpec("DecodePaddedRaw", "input_bytes: string, fixed_length: int32 -> output: out_type",
           "out_type: {half, float, double, int32, uint16, uint8, int16, int8, int64}; "
           "little_endian: bool = true")
        .With(RuledKernelFor<DecodePaddedRawRule>(RunDecodePaddedRaw))
        .NotDifferentiable();

// --- DecodeCompressed ----------------------------------------------------------------------------

// Of all strings of a step: what a few bytes could otherwise become without bound.
constexpr uint64_t kMostBytes = uint64_t{1} << 30;

struct DecodeCompressedRule : UnchangedShapeRule {
  Compression compression = Compression::kNone;

  Status Init(const NodeAttrs& attrs) {
    std::string type;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "compression_type", &type));
    if (type == "ZLIB") {
      compression = Compression::kZlib;
    } else if (type == "GZIP") {
      compression = Compression::kGzip;
    } else if (!type.empty()) {
      return InvalidArgument("Only ZLIB, GZIP or NONE are supported compressions, got '", type,
                             "'");
    }
    return absl::OkStatus();
  }
};

class Inflater {
 public:
  explicit Inflater(Compression compression) {
    ready_ = inflateInit2(&stream_, ZlibWindowBits(compression)) == Z_OK;
  }
  ~Inflater() {
    if (ready_) inflateEnd(&stream_);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // One or several streams in a row. `*left`: how many bytes there may be yet.
  Status Inflate(absl::string_view bytes, uint64_t* left, std::string* out) {
    if (!ready_ || inflateReset(&stream_) != Z_OK) {
      return absl::ResourceExhaustedError("no memory to decompress");
    }
    size_t given = 0;  // of the input, to zlib, which counts in 32 bits
    constexpr size_t kChunk = size_t{64} << 10;
    stream_.avail_in = 0;
    bool ended = bytes.empty();
    while (!ended || given < bytes.size() || stream_.avail_in > 0) {
      if (ended && inflateReset(&stream_) != Z_OK) {
        return absl::ResourceExhaustedError("no memory to decompress");
      }
      if (stream_.avail_in == 0) {
        if (given == bytes.size()) return absl::DataLossError("truncated compressed data");
        const size_t n = std::min(bytes.size() - given, size_t{1} << 30);
        stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + given));
        stream_.avail_in = static_cast<uInt>(n);
        given += n;
      }
      const size_t before = out->size();
      const size_t room = static_cast<size_t>(std::min<uint64_t>(kChunk, *left + 1));
      out->resize(before + room);
      stream_.next_out = reinterpret_cast<Bytef*>(out->data() + before);
      stream_.avail_out = static_cast<uInt>(room);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      const size_t made = room - stream_.avail_out;
      out->resize(before + made);
      if (made > *left) {
        return absl::ResourceExhaustedError(
            "bytes must have at most 1073741824 bytes when they are decompressed, got more");
      }
      *left -= made;
      ended = result == Z_STREAM_END;
      if (result == Z_BUF_ERROR && stream_.avail_in == 0) continue;  // it wants more input
      if (result == Z_OK || ended) continue;
      return absl::DataLossError(absl::StrCat(
          "corrupted compressed data (", stream_.msg != nullptr ? stream_.msg : "zlib refuses it",
          ") at ", stream_.total_in));
    }
    return absl::OkStatus();
  }

 private:
  z_stream stream_{};
  bool ready_ = false;
};

Status RunDecodeCompressed(KernelContext* ctx, const DecodeCompressedRule& rule) {
  if (rule.compression == Compression::kNone) return ctx->PassInput(0);
  const absl::Span<const std::string> in = ctx->input(0).raw<std::string>();
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0));
  const absl::Span<std::string> out = output->mutable_raw<std::string>();
  Inflater inflater(rule.compression);
  uint64_t left = kMostBytes;
  for (size_t i = 0; i < in.size(); ++i) {
    const Status status = inflater.Inflate(in[i], &left, &out[i]);
    if (!status.ok()) return Prefixed(absl::StrCat("bytes[", i, "]"), status);
  }
  return absl::OkStatus();
}

const OpRegistration kDecodeCompressed =
    OpSpec("DecodeCompressed", "bytes: string -> output: string", "compression_type: string = ''")
        .With(RuledKernelFor<DecodeCompressedRule>(RunDecodeCompressed))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace

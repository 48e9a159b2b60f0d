// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/session_terms.h"

#include <algorithm>
#include <string>
#include <utility>

#include "distributed/transport/transport.pb.h"
#include "google/protobuf/unknown_field_set.h"
#include "proto/worker_control.pb.h"
#include "run/run_end_limits.h"

namespace millrace {
namespace {

// A lease that is shorter cannot be kept on a busy network; longer ones are as good as none.
constexpr absl::Duration kMinLease = absl::Milliseconds(100);
constexpr absl::Duration kMaxLease = absl::Hours(24);

// The bytes of the last length-delimited field of this number, or null.
const std::string* FindField(const google::protobuf::Message& message, int number) {
  const std::string* found = nullptr;
  const auto& fields = message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& field = fields.field(i);
    if (field.number() == number &&
        field.type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
      found = &field.length_delimited();
    }
  }
  return found;
}

// At most `max_bytes` of a text, and no part of a character: half a one could not travel further.
std::string Beginning(const std::string& text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t size = max_bytes;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  return text.substr(0, size);
}

}  // namespace

void AddSessionTerms(const SessionTerms& terms, google::protobuf::Message* message) {
  if (terms.run.empty() && terms.lease <= absl::ZeroDuration()) return;
  wire::SessionTerms wire;
  ToWire(terms, &wire);
  std::string bytes;
  wire.SerializeToString(&bytes);
  auto* const fields = message->GetReflection()->MutableUnknownFields(message);
  fields->DeleteByNumber(wire::SessionTermsField::kTermsFieldNumber);
  fields->AddLengthDelimited(wire::SessionTermsField::kTermsFieldNumber, bytes);
}

StatusOr<SessionTerms> SessionTermsOf(const google::protobuf::Message& message) {
  const std::string* const bytes = FindField(message, wire::SessionTermsField::kTermsFieldNumber);
  if (bytes == nullptr) return SessionTerms();
  wire::SessionTerms wire;
  if (!wire.ParseFromString(*bytes)) {
    return InvalidArgument(message.GetTypeName(), ": its session terms must be a message, got ",
                           bytes->size(), " other bytes");
  }
  return KeptTerms(message.GetTypeName(), FromWire(wire));
}

StatusOr<SessionTerms> KeptTerms(absl::string_view where, SessionTerms terms) {
  MR_RETURN_IF_ERROR(CheckRun(terms.run));
  if (terms.lease < absl::ZeroDuration()) {
    return InvalidArgument(where, ": a lease must be >= 0 ms, got ",
                           absl::ToInt64Milliseconds(terms.lease));
  }
  if (terms.lease > absl::ZeroDuration()) {
    terms.lease = std::clamp(terms.lease, kMinLease, kMaxLease);
  }
  return terms;
}

void ToWire(const SessionTerms& terms, wire::SessionTerms* message) {
  if (!terms.run.empty()) ToWire(terms.run, message->mutable_run());
  message->set_lease_in_ms(absl::ToInt64Milliseconds(terms.lease));
}

SessionTerms FromWire(const wire::SessionTerms& message) {
  return {.run = FromWire(message.run()), .lease = absl::Milliseconds(message.lease_in_ms())};
}

void ToWire(const TrainingRun& run, wire::TrainingRun* message) {
  message->set_name(run.name);
  message->set_id(run.id);
  message->set_is_chief(run.is_chief);
  message->set_chief(run.chief);
  message->set_epoch(run.epoch);
}

TrainingRun FromWire(const wire::TrainingRun& message) {
  return {.name = message.name(),
          .id = message.id(),
          .is_chief = message.is_chief(),
          .chief = message.chief(),
          .epoch = message.epoch()};
}

void ToWire(const RunEnd& end, wire::RunEnd* message) {
  message->set_global_step(end.global_step);
  message->set_checkpoint(end.checkpoint);
  message->set_reason(end.reason);
}

RunEnd FromWire(const wire::RunEnd& message) {
  const bool is_short = message.checkpoint().size() <= kMaxCheckpointBytes;
  return {.global_step = message.global_step(),
          .checkpoint = is_short ? message.checkpoint() : std::string(),
          .reason = Beginning(message.reason(), kMaxReasonBytes)};
}

}  // namespace millrace

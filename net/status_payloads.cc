// SPDX-License-Identifier: Apache-2.0
#include "net/status_payloads.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "core/status_kind.h"
#include "google/protobuf/unknown_field_set.h"
#include "net/status_payloads.pb.h"

namespace millrace {
namespace {

// gRPC refuses trailers above 8 KiB; a message and these in base64 stay below.
constexpr size_t kMaxPayloadBytes = 3072;

Status WithParsed(Status status, const wire::StatusPayloads& payloads) {
  for (const auto& payload : payloads.payload()) {
    if (status.ok() || !absl::StartsWith(payload.type(), kKindPayloads)) continue;
    status.SetPayload(payload.type(), absl::Cord(payload.value()));
  }
  return status;
}

wire::StatusPayloads PayloadsOf(const Status& status) {
  wire::StatusPayloads payloads;
  status.ForEachPayload([&payloads](absl::string_view type, const absl::Cord& value) {
    if (!absl::StartsWith(type, kKindPayloads)) return;
    auto* const payload = payloads.add_payload();
    payload->set_type(std::string(type));
    payload->set_value(std::string(value));
  });
  if (payloads.ByteSizeLong() > kMaxPayloadBytes) payloads.Clear();
  return payloads;
}

}  // namespace

std::string PayloadBytes(const Status& status) {
  return status.ok() ? std::string() : PayloadsOf(status).SerializeAsString();
}

void AddPayloads(const Status& status, google::protobuf::Message* message) {
  if (status.ok()) return;
  const wire::StatusPayloads payloads = PayloadsOf(status);
  auto* const fields = message->GetReflection()->MutableUnknownFields(message);
  for (const auto& payload : payloads.payload()) {
    fields->AddLengthDelimited(wire::StatusPayloads::kPayloadFieldNumber,
                               payload.SerializeAsString());
  }
}

Status WithPayloads(Status status, absl::string_view bytes) {
  if (bytes.empty() || bytes.size() > kMaxPayloadBytes) return status;
  wire::StatusPayloads payloads;
  if (!payloads.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return status;
  return WithParsed(std::move(status), payloads);
}

Status WithPayloadsOf(Status status, const google::protobuf::Message& message) {
  if (status.ok()) return status;
  wire::StatusPayloads payloads;
  const auto& fields = message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& field = fields.field(i);
    if (field.number() != wire::StatusPayloads::kPayloadFieldNumber ||
        field.type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED ||
        field.length_delimited().size() > kMaxPayloadBytes) {
      continue;
    }
    wire::StatusPayloads::Payload payload;
    if (payload.ParseFromString(field.length_delimited())) {
      *payloads.add_payload() = std::move(payload);
    }
  }
  return WithParsed(std::move(status), payloads);
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/edges_mode.h"

#include <cstdint>

#include "distributed/link/frame.h"
#include "distributed/transport/transport.pb.h"
#include "google/protobuf/unknown_field_set.h"

namespace millrace {
namespace {

void Set(int number, uint64_t value, google::protobuf::Message* message) {
  auto* const fields = message->GetReflection()->MutableUnknownFields(message);
  fields->DeleteByNumber(number);
  fields->AddVarint(number, value);
}

// 0 without it.
uint64_t ValueOf(const google::protobuf::Message& message, int number) {
  uint64_t value = 0;  // the last one counts, as in each message
  const auto& fields = message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& field = fields.field(i);
    if (field.number() == number && field.type() == google::protobuf::UnknownField::TYPE_VARINT) {
      value = field.varint();
    }
  }
  return value;
}

}  // namespace

void SetPushed(google::protobuf::Message* request) {
  Set(wire::EdgesMode::kPushedFieldNumber, 1, request);
}
bool IsPushed(const google::protobuf::Message& request) {
  return ValueOf(request, wire::EdgesMode::kPushedFieldNumber) != 0;
}
void SetCanPush(google::protobuf::Message* response) {
  Set(wire::EdgesMode::kCanPushFieldNumber, kLinkVersion, response);
}
bool CanPush(const google::protobuf::Message& response) {
  return ValueOf(response, wire::EdgesMode::kCanPushFieldNumber) == kLinkVersion;
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/edges_mode.h"

#include "distributed/transport/transport.pb.h"
#include "google/protobuf/unknown_field_set.h"

namespace millrace {
namespace {

void Set(int number, google::protobuf::Message* message) {
  auto* const fields = message->GetReflection()->MutableUnknownFields(message);
  fields->DeleteByNumber(number);
  fields->AddVarint(number, 1);
}

bool IsSet(const google::protobuf::Message& message, int number) {
  bool set = false;  // the last one counts, as in each message
  const auto& fields = message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& field = fields.field(i);
    if (field.number() == number && field.type() == google::protobuf::UnknownField::TYPE_VARINT) {
      set = field.varint() != 0;
    }
  }
  return set;
}

}  // namespace

void SetPushed(google::protobuf::Message* request) {
  Set(wire::EdgesMode::kPushedFieldNumber, request);
}
bool IsPushed(const google::protobuf::Message& request) {
  return IsSet(request, wire::EdgesMode::kPushedFieldNumber);
}
void SetCanPush(google::protobuf::Message* response) {
  Set(wire::EdgesMode::kCanPushFieldNumber, response);
}
bool CanPush(const google::protobuf::Message& response) {
  return IsSet(response, wire::EdgesMode::kCanPushFieldNumber);
}

}  // namespace millrace

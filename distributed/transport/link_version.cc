// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/link_version.h"

#include "distributed/link/frame.h"
#include "distributed/transport/transport.pb.h"
#include "google/protobuf/unknown_field_set.h"

namespace millrace {
namespace {

constexpr int kNumber = wire::LinkVersion::kLinkVersionFieldNumber;

}  // namespace

void SetLinkVersion(google::protobuf::Message* response) {
  auto* const fields = response->GetReflection()->MutableUnknownFields(response);
  fields->DeleteByNumber(kNumber);
  fields->AddVarint(kNumber, kLinkVersion);
}

uint64_t LinkVersionOf(const google::protobuf::Message& response) {
  uint64_t version = 0;  // the last one counts, as in each message
  const auto& fields = response.GetReflection()->GetUnknownFields(response);
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& field = fields.field(i);
    if (field.number() == kNumber && field.type() == google::protobuf::UnknownField::TYPE_VARINT) {
      version = field.varint();
    }
  }
  return version;
}

}  // namespace millrace

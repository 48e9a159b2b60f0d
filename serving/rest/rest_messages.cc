// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/rest_messages.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/util/json_util.h"

namespace millrace {
namespace {

StatusOr<std::string> Printed(const google::protobuf::Message& message, absl::string_view what) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!status.ok()) {
    return Internal("Failed to convert ", what, " to json. Error: ", status.ToString());
  }
  return text;
}

}  // namespace

StatusOr<std::string> StatusReply(const google::protobuf::Message& response) {
  return Printed(response, "proto");
}

StatusOr<std::string> MetadataReply(const google::protobuf::Message& model_spec,
                                    const google::protobuf::Message& signature_def_map) {
  MR_ASSIGN_OR_RETURN(const std::string spec, Printed(model_spec, "model spec proto"));
  MR_ASSIGN_OR_RETURN(const std::string map, Printed(signature_def_map, "signature def proto"));
  // Both texts end in a line's end.
  return absl::StrCat("{\n\"model_spec\":", spec, ",\n\"metadata\": {\"signature_def\": ", map,
                      "}\n}\n");
}

}  // namespace millrace

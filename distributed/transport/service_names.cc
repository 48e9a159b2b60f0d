// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/service_names.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace millrace {

void AddNamesOfStubs(decltype(RpcServer::Options::handlers)* handlers) {
  decltype(RpcServer::Options::handlers) added;
  for (const auto& [name, handler] : *handlers) {
    absl::string_view rest = name;
    if (absl::ConsumePrefix(&rest, "/tensorflow.grpc.")) {
      added.emplace(absl::StrCat("/tensorflow.", rest), handler);
    }
  }
  handlers->merge(added);
}

}  // namespace millrace

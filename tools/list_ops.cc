// SPDX-License-Identifier: Apache-2.0
// list_ops: the signatures of all ops of this build, as the text of an OpList, on stdout. Without
// the ops that only the runtime makes ("_Send").

#include <google/protobuf/text_format.h>

#include <cstdio>
#include <string>

#include "core/exit_code.h"
#include "core/status.h"
#include "graph/op_registry.h"
#include "proto/op_def.pb.h"

int main() {
  if (const millrace::Status status = millrace::OpRegistrationStatus(); !status.ok()) {
    std::fprintf(stderr, "list_ops: %s\n", status.ToString().c_str());
    return millrace::kExitError;
  }
  tensorflow::OpList ops;
  for (const millrace::OpEntry* entry : millrace::AllOps()) {
    if (entry->def.name()[0] != '_') *ops.add_op() = entry->def;
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(ops, &text);
  const bool written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? millrace::kExitOk : millrace::kExitError;
}

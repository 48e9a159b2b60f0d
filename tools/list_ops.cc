// SPDX-License-Identifier: Apache-2.0
// list_ops: the signatures of all ops of this build, as the text of an OpList, on stdout. Without
// the ops that only the runtime makes ("_Send").

#include <google/protobuf/text_format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "core/exit_code.h"
#include "core/program.h"
#include "core/status.h"
#include "graph/op_registry.h"
#include "proto/op_def.pb.h"
#include "tools/command_line.h"

int main(int argc, char** argv) {
  const millrace::ProgramHelp help = {
      .name = "list_ops",
      .about =
          "Writes the signatures of all ops of this build to stdout, as the text of an OpList."};
  int exit_code = millrace::kExitOk;
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (!millrace::CommandLine::ParseOrExplain(help, args, &exit_code)) return exit_code;
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

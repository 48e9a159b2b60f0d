// SPDX-License-Identifier: Apache-2.0
// A program whose op is of somebody else's (docs/adding_an_op.md): it has the builder's header, and
// loads the library that is named on the command line.
#include <millrace/millrace.h>

#include <cstdio>
#include <string>
#include <variant>
#include <vector>

#include "repeat_rows.h"

using namespace millrace;

void Print(const char* name, const Tensor& values) {
  std::printf("%s:", name);
  for (const float value : values.flat<float>()) std::printf(" %g", static_cast<double>(value));
  std::printf("\n");
}

Status LoadAndRun(const std::string& library) {
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> ops, LoadOpLibrary(library));
  for (const std::string& op : ops) std::printf("op: %s\n", op.c_str());
  Scope root;
  const Output x = Placeholder(root, DT_FLOAT, {2});
  const Output y = RepeatRows(root, x, Const(root, 3));
  const Output loss = ReduceSum(root, Square(root, y));
  MR_ASSIGN_OR_RETURN(const auto gradients, AddGradients(root, {loss}, {x}));
  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_ASSIGN_OR_RETURN(const auto out, session->Run({{x, Tensor::Of<float>({1, 2})}},
                                                   {y, std::get<Output>(gradients[0])}));
  Print("y", out[0]);
  Print("gradient", out[1]);
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  const Status status = LoadAndRun(argc > 1 ? argv[1] : "repeat_rows.so");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

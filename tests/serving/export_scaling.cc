// SPDX-License-Identifier: Apache-2.0
//
// Exports the model of served_models.h for tests that are no C++.
//
//   export_scaling DIRECTORY SCALE

#include <iostream>

#include "absl/strings/numbers.h"
#include "core/exit_code.h"
#include "core/status.h"
#include "tests/serving/served_models.h"

int main(int argc, char** argv) {
  float scale = 0;
  if (argc != 3 || !absl::SimpleAtof(argv[2], &scale)) {
    std::cerr << "export_scaling: must be given DIRECTORY and SCALE\n";
    return millrace::kExitError;
  }
  return millrace::ReportedExitCode("export_scaling",
                                    millrace::ExportScaling(argv[1], {.scale = scale}));
}

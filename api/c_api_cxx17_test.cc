// SPDX-License-Identifier: Apache-2.0
//
// The header as C++17 sees it, in a program that includes nothing else of this project.
#include <cstdio>

#include "api/c_api.h"

static_assert(__cplusplus == 201703L, "copts say -std=c++17");

int main() {
  MillraceStatus* status = millrace_status_new();
  MillraceTensor* tensor = millrace_tensor_new(MILLRACE_FLOAT, nullptr, 0, status);
  const bool is_right = millrace_status_code(status) == MILLRACE_OK &&
                        millrace_tensor_dtype(tensor) == MILLRACE_FLOAT;
  if (!is_right) std::puts(millrace_status_message(status));
  millrace_tensor_delete(tensor);
  millrace_status_delete(status);
  return is_right ? 0 : 1;
}

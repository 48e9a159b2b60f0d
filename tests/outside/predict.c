// SPDX-License-Identifier: Apache-2.0
// A C program that asks a model which another program (program.cc) has exported: what does it take
// and give, and what does it say of 3?
#include <millrace/c_api.h>
#include <stdio.h>

int main(int argc, char** argv) {
  MillraceStatus* status = millrace_status_new();
  MillraceSavedModel* model =
      millrace_saved_model_load(argc > 1 ? argv[1] : "export", NULL, 0, NULL, status);
  MillraceStrings* signatures = millrace_saved_model_signatures(model, status);
  for (int i = 0; i < millrace_strings_count(signatures); ++i) {
    printf("signature %s\n", millrace_strings_get(signatures, i));
  }
  const int64_t one[] = {1};
  const float x[] = {3};
  const char *input = "x", *output = "y";
  MillraceTensor* fed = millrace_tensor_from_data(MILLRACE_FLOAT, one, 1, x, sizeof x, status);
  MillraceTensor* value = NULL;
  millrace_saved_model_run(model, "serving_default", &input, &fed, 1, &output, &value, 1, NULL,
                           status);
  const int failed = millrace_status_code(status) != MILLRACE_OK;
  if (failed) {
    fprintf(stderr, "%s\n", millrace_status_message(status));
  } else {
    printf("y(3) = %.3f\n", (double)*(const float*)millrace_tensor_data(value));
  }
  millrace_tensor_delete(value);
  millrace_tensor_delete(fed);
  millrace_strings_delete(signatures);
  millrace_saved_model_delete(model);
  millrace_status_delete(status);
  return failed;
}

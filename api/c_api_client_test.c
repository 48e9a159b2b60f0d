// SPDX-License-Identifier: Apache-2.0
//
// The C API's calls to a model server, in plain C11.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/c_api.h"
#include "api/testing/client_test_server.h"

// covers: c api: C programs ask a model server by signature, version and label; errors are the
//   server's, and leave no tensor behind

static int failures = 0;

#define EXPECT(condition)                                             \
  do {                                                                \
    if (!(condition)) {                                               \
      printf("%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                     \
    }                                                                 \
  } while (0)

#define EXPECT_OK(status)                                                             \
  do {                                                                                \
    if (millrace_status_code(status) != MILLRACE_OK) {                                \
      printf("%s:%d: %s\n", __FILE__, __LINE__, millrace_status_message(status));     \
      ++failures;                                                                     \
    }                                                                                 \
  } while (0)

static const char* const kInputNames[] = {"x", "k"};
static const char* const kOutputNames[] = {"sum", "product"};

// x = [[1, 2]], k = 2, at the places of kInputNames.
static void MakeInputs(MillraceTensor** inputs, MillraceStatus* status) {
  const int64_t dims[] = {1, 2};
  const float x[] = {1, 2}, k = 2;
  inputs[0] = millrace_tensor_from_data(MILLRACE_FLOAT, dims, 2, x, sizeof x, status);
  inputs[1] = millrace_tensor_from_data(MILLRACE_FLOAT, NULL, 0, &k, sizeof k, status);
}

static void Predicts(MillraceModelClient* client, const MillracePredictOptions* options,
                     MillraceStatus* status) {
  MillraceTensor *inputs[2], *outputs[2];
  int64_t version = 0;
  MakeInputs(inputs, status);
  EXPECT(millrace_model_client_predict(client, "m", kInputNames, inputs, 2, kOutputNames, outputs,
                                       2, options, &version, status) == MILLRACE_OK);
  EXPECT_OK(status);
  EXPECT(version == 3);
  const float want[2][2] = {{3, 4}, {2, 4}};
  for (int i = 0; i < 2; ++i) {
    const float* got = (const float*)millrace_tensor_data(outputs[i]);
    EXPECT(got != NULL && millrace_tensor_num_elements(outputs[i]) == 2);
    EXPECT(got != NULL && got[0] == want[i][0] && got[1] == want[i][1]);
    millrace_tensor_delete(outputs[i]);
    millrace_tensor_delete(inputs[i]);
  }
}

static void Refuses(MillraceModelClient* client, const char* model,
                    const MillracePredictOptions* options, MillraceCode code, const char* text,
                    MillraceStatus* status) {
  MillraceTensor *inputs[2], *outputs[2];
  MakeInputs(inputs, status);
  EXPECT_OK(status);
  EXPECT(millrace_model_client_predict(client, model, kInputNames, inputs, 2, kOutputNames, outputs,
                                       2, options, NULL, status) == code);
  EXPECT(strstr(millrace_status_message(status), text) != NULL);
  EXPECT(outputs[0] == NULL && outputs[1] == NULL);
  millrace_status_clear(status);
  millrace_tensor_delete(inputs[0]);
  millrace_tensor_delete(inputs[1]);
}

int main(void) {
  const char* address = StartClientTestServer();
  if (address == NULL) return EXIT_FAILURE;
  MillraceStatus* status = millrace_status_new();
  MillraceModelClient* client = millrace_model_client_new(address, NULL, status);
  EXPECT_OK(status);

  Predicts(client, NULL, status);
  MillracePredictOptions options = {.struct_size = sizeof options};
  options.signature = "serving_default";
  options.label = "stable";
  options.timeout_seconds = 120;
  Predicts(client, &options, status);
  options.label = NULL;
  options.version = 3;
  options.has_version = 1;
  Predicts(client, &options, status);

  Refuses(client, "n", NULL, MILLRACE_NOT_FOUND, "Servable not found for request: Latest(n)",
          status);
  options.version = 4;
  Refuses(client, "m", &options, MILLRACE_NOT_FOUND,
          "Servable not found for request: Specific(m, 4)", status);
  options.timeout_seconds = -1;
  Refuses(client, "m", &options, MILLRACE_INVALID_ARGUMENT,
          "options.timeout_seconds must be >= 0 and finite, got -1", status);
  Refuses(client, NULL, NULL, MILLRACE_INVALID_ARGUMENT, "model", status);
  Refuses(NULL, "m", NULL, MILLRACE_INVALID_ARGUMENT, "client", status);

  int64_t versions[2] = {0, 0};
  MillraceVersionState states[2] = {0, 0};
  EXPECT(millrace_model_client_versions(client, "m", versions, states, 2, status) == 1);
  EXPECT(versions[0] == 3 && states[0] == MILLRACE_VERSION_AVAILABLE);
  EXPECT(millrace_model_client_versions(client, "m", NULL, NULL, 0, status) == 1);
  EXPECT_OK(status);
  EXPECT(millrace_model_client_versions(client, "n", NULL, NULL, 0, status) == -1);
  EXPECT(millrace_status_code(status) == MILLRACE_NOT_FOUND);
  millrace_status_clear(status);

  MillraceStrings* signatures = millrace_model_client_signatures(client, "m", status);
  int has_default = 0;
  for (int i = 0; i < millrace_strings_count(signatures); ++i) {
    has_default |= strcmp(millrace_strings_get(signatures, i), "serving_default") == 0;
  }
  EXPECT(has_default);
  millrace_strings_delete(signatures);

  EXPECT(millrace_model_client_new("nowhere", NULL, status) == NULL);
  EXPECT(strstr(millrace_status_message(status), "address must be host:port") != NULL);
  millrace_status_clear(status);

  millrace_model_client_delete(client);
  millrace_status_delete(status);
  StopClientTestServer();
  printf("%d failures\n", failures);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

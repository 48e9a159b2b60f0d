/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MILLRACE_API_TESTING_CLIENT_TEST_SERVER_H_
#define MILLRACE_API_TESTING_CLIENT_TEST_SERVER_H_

// A model server in the process of a test in C: version 3, "stable", of model "m"
// (serving/testing/test_model.h) at a free port.

#ifdef __cplusplus
extern "C" {
#endif

// Its address; NULL, and the reason on stderr, when it cannot be started. Once.
const char* StartClientTestServer(void);
// Stops it and deletes its files.
void StopClientTestServer(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MILLRACE_API_TESTING_CLIENT_TEST_SERVER_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_SERVER_TESTING_SERVED_TEST_MODELS_H_
#define MILLRACE_SERVING_SERVER_TESTING_SERVED_TEST_MODELS_H_

// Versions of the model of serving/testing/test_model.h on disk, and a ModelServer of them on free
// ports of 127.0.0.1. Deleted after each test.
//
// Tests that include it link the kernels: //ops, //data and //runtime.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/http/testing/raw_http_client.h"
#include "net/security.h"
#include "serving/server/model_server.h"
#include "serving/testing/test_model.h"

namespace millrace {

class ServedTestModels : public ::testing::Test {
 protected:
  ServedTestModels() : base_(JoinPath(::testing::TempDir(), "served_" + RandomHexName())) {}
  ~ServedTestModels() override {
    server_.reset();
    FileSystem::Posix()->RecursivelyDelete(base_).IgnoreError();
  }

  std::string VersionPath(const std::string& model, int64_t version) const {
    return JoinPath(JoinPath(base_, model), absl::StrCat(version));
  }
  void AddVersion(const std::string& model, int64_t version) {
    ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(JoinPath(base_, model)));
    ASSERT_OK(ExportTestModel(VersionPath(model, version)));
  }
  ModelServerOptions Options(const std::vector<std::string>& models) const {
    ModelServerOptions options;
    for (const std::string& name : models) {
      options.models.push_back({.name = name, .base_path = JoinPath(base_, name)});
    }
    options.grpc_address = "127.0.0.1:0";
    options.rest_addresses = {"127.0.0.1:0"};
    options.credentials = std::make_shared<Credentials>();
    options.versions.source.trust_new_versions = true;
    options.versions.poll_period = absl::ZeroDuration();
    options.versions.plan.max_retries = 0;
    options.start_timeout = absl::Seconds(60);
    return options;
  }
  void Start(ModelServerOptions options) {
    StatusOr<std::unique_ptr<ModelServer>> server = ModelServer::Start(std::move(options));
    ASSERT_OK(server);
    server_ = *std::move(server);
  }
  RawHttpReply Rest(absl::string_view method, absl::string_view path, absl::string_view body = "",
                    absl::string_view headers = "") const {
    RawHttpClient client(server_->rest_port());
    return client.Ask(HttpRequestText(method, path, body, headers));
  }

  const std::string base_;
  std::unique_ptr<ModelServer> server_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_SERVER_TESTING_SERVED_TEST_MODELS_H_

// SPDX-License-Identifier: Apache-2.0
#include "api/testing/client_test_server.h"

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "net/security.h"
#include "serving/server/model_server.h"
#include "serving/testing/test_model.h"

namespace millrace {
namespace {

struct TestServer {
  std::string directory, address;
  std::unique_ptr<ModelServer> server;
};

StatusOr<std::unique_ptr<TestServer>> Started() {
  auto made = std::make_unique<TestServer>();
  const char* const temporary = std::getenv("TEST_TMPDIR");
  made->directory = JoinPath(temporary == nullptr ? "/tmp" : temporary,
                             absl::StrCat("client_test_server_", RandomHexName()));
  MR_RETURN_IF_ERROR(FileSystem::Posix()->RecursivelyCreateDirectory(made->directory));
  MR_RETURN_IF_ERROR(ExportTestModel(JoinPath(made->directory, "3")));
  ModelServerOptions options;
  options.models.push_back({.name = "m", .base_path = made->directory});
  options.models[0].labels = {{"stable", 3}};
  options.grpc_address = "127.0.0.1:0";
  options.credentials = std::make_shared<Credentials>();
  options.versions.source.trust_new_versions = true;
  options.start_timeout = absl::Seconds(60);
  MR_ASSIGN_OR_RETURN(made->server, ModelServer::Start(std::move(options)));
  made->address = absl::StrCat("127.0.0.1:", made->server->grpc_port());
  return made;
}

std::unique_ptr<TestServer>& TheServer() {
  static auto* const server = new std::unique_ptr<TestServer>;
  return *server;
}

}  // namespace
}  // namespace millrace

extern "C" const char* StartClientTestServer(void) {
  millrace::StatusOr<std::unique_ptr<millrace::TestServer>> made = millrace::Started();
  if (!made.ok()) {
    std::cerr << made.status() << std::endl;
    return nullptr;
  }
  millrace::TheServer() = *std::move(made);
  return millrace::TheServer()->address.c_str();
}

extern "C" void StopClientTestServer(void) {
  if (millrace::TheServer() == nullptr) return;
  millrace::TheServer()->server.reset();
  millrace::FileSystem::Posix()->RecursivelyDelete(millrace::TheServer()->directory).IgnoreError();
  millrace::TheServer().reset();
}

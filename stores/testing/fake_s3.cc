// SPDX-License-Identifier: Apache-2.0
#include "stores/testing/fake_s3.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

extern char** environ;

namespace millrace {
namespace {

constexpr char kProgram[] = "stores/testing/fake_s3.py";

std::string FirstLine(int fd) {
  std::string line;
  char c = 0;
  while (read(fd, &c, 1) == 1 && c != '\n') line.push_back(c);
  return line;
}

}  // namespace

StatusOr<std::unique_ptr<FakeS3>> FakeS3::Start(const Tls& tls) {
  setenv("no_proxy", "*", 1);  // libcurl asks no proxy for this machine
  int input[2];
  int output[2];
  if (pipe2(input, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0) {
    return absl::UnavailableError("FakeS3: pipes must be there, got none");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  std::vector<std::string> texts = {kProgram};
  if (!tls.certificate_file.empty()) {
    texts.insert(texts.end(), {"--certificate", tls.certificate_file, "--key", tls.key_file});
  }
  std::vector<char*> args;
  for (std::string& text : texts) args.push_back(text.data());
  args.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, kProgram, &actions, nullptr, args.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(output[1]);
  const std::string line = error == 0 ? FirstLine(output[0]) : "";
  close(output[0]);
  absl::string_view rest = line;
  int port = 0;
  if (error != 0 || !absl::ConsumePrefix(&rest, "listening on ") ||
      !absl::SimpleAtoi(rest, &port)) {
    close(input[1]);
    return absl::UnavailableError(
        absl::StrCat("FakeS3: ", kProgram, " must start, got ", error, " '", line, "'"));
  }
  return std::unique_ptr<FakeS3>(new FakeS3(pid, input[1], port, tls));
}

FakeS3::FakeS3(pid_t pid, int input, int port, const Tls& tls)
    : pid_(pid), input_(input), port_(port), tls_(tls), http_({.ca_file = tls.ca_file}) {}

FakeS3::~FakeS3() {
  close(input_);
  waitpid(pid_, nullptr, 0);
}

std::string FakeS3::endpoint() const {
  return absl::StrCat(tls_.certificate_file.empty() ? "http" : "https", "://127.0.0.1:", port_);
}

S3Options FakeS3::Options() const {
  S3Options options;
  options.endpoint = endpoint();
  options.path_style = true;
  options.http.ca_file = tls_.ca_file;
  options.http.first_backoff = absl::Milliseconds(1);
  options.http.stall_timeout = absl::Seconds(1);
  options.http.max_attempts = 4;
  options.part_bytes = 8 << 10;
  options.environment = [](const char* name) -> std::string {
    if (absl::string_view(name) == "AWS_ACCESS_KEY_ID") return "AKIAFAKE";
    if (absl::string_view(name) == "AWS_SECRET_ACCESS_KEY") return "fake-secret";
    return "";
  };
  return options;
}

nlohmann::json FakeS3::Control(absl::string_view wish) {
  const StatusOr<HttpResponse> response = http_.Call(
      {.method = wish.empty() ? "GET" : "POST", .url = endpoint() + "/_control", .body = wish});
  if (!response.ok()) return nlohmann::json{{"error", response.status().ToString()}};
  return nlohmann::json::parse(response->body, nullptr, false);
}

}  // namespace millrace

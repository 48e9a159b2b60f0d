// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/watched_cluster.h"

#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/placeholder.h"
#include "proto/config.pb.h"

namespace millrace {
namespace {

constexpr absl::Duration kGuard = absl::Minutes(2);
// One link has half of it.
constexpr int64_t kSharedBytes = int64_t{2} << 30;

}  // namespace

WatchedCluster::WatchedCluster(Way way, int64_t max_untaken_steps)
    : way_(way),
      max_untaken_steps_(max_untaken_steps),
      ports_(FreeClusterPorts(2, 0, 1)),
      tmp_dir_(JoinPath(::testing::TempDir(), absl::StrCat("watched_", RandomHexName()))) {
  ports_.host = "127.0.0.1";
  EXPECT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(tmp_dir_));
  StartPs(kSender);
  StartPs(kReceiver);
  const auto config = ClusterConfig::Parse(TfConfig(ports_, "worker", 0));
  EXPECT_OK(config);
  if (!config.ok()) return;
  auto worker = Server::Start(*config, {.unix_links = way != Way::kGrpc});
  EXPECT_OK(worker);
  if (worker.ok()) worker_ = *std::move(worker);

  // What is fed is the worker's, so it travels as edges do.
  const Scope here = root_.WithDevice("/job:worker/task:0");
  elements_ = Placeholder(here, DT_INT32, {1});
  value_ = Placeholder(here, DT_FLOAT, {});
  const Output sent = Fill(root_.WithDevice("/job:ps/task:0"), elements_, value_);
  const Scope receiver = root_.WithDevice("/job:ps/task:1");
  moved_ = Gather(receiver, sent, Const<int32_t>(receiver, {0}));
}

WatchedCluster::~WatchedCluster() {
  // One that is stopped would hold up the end of the session.
  for (const auto& [task, process] : ps_) process->Signal(SIGCONT).IgnoreError();
  CloseSession();
  worker_ = nullptr;
  ps_.clear();
  FileSystem::Posix()->RecursivelyDelete(tmp_dir_).IgnoreError();
}

void WatchedCluster::StartPs(int task) {
  ProcessOptions options;
  options.name = absl::StrCat("ps-", task);
  options.program = "tests/cluster/watched_task";
  options.env = {{"TF_CONFIG", TfConfig(ports_, "ps", task)},
                 {"MILLRACE_WIRE", "links"},
                 {"MILLRACE_UNIX_LINKS", way_ == Way::kGrpc ? "0" : "1"},
                 {"MILLRACE_LINK_SHARED_BYTES",
                  absl::StrCat(way_ == Way::kShared ? kSharedBytes : int64_t{0})},
                 {"TMPDIR", tmp_dir_}};
  if (max_untaken_steps_ > 0) {
    options.env["MILLRACE_WATCHED_UNTAKEN_STEPS"] = absl::StrCat(max_untaken_steps_);
  }
  auto process = Process::Start(options);
  ASSERT_OK(process);
  EXPECT_OK((*process)->WaitForLine("listens on", kGuard));
  ps_[task] = *std::move(process);
}

void WatchedCluster::OpenSession() {
  CloseSession();
  ASSERT_NE(worker_, nullptr);
  SessionOptions options;
  options.target = worker_->target();
  options.creation_timeout = kGuard;
  auto session = NewSession(options);
  ASSERT_OK(session);
  EXPECT_OK((*session)->Extend(root_));
  session_ = *std::move(session);
}

void WatchedCluster::CloseSession() {
  // An error says that a task has ended.
  if (session_ != nullptr) session_->Close().IgnoreError();
  session_ = nullptr;
}

Status WatchedCluster::Move(int64_t bytes, float value, absl::Duration limit) {
  if (session_ == nullptr) return FailedPrecondition("Move: a session must be open, got none");
  const auto elements = static_cast<int32_t>(bytes / static_cast<int64_t>(sizeof(float)));
  tensorflow::RunOptions options;
  options.set_timeout_in_ms(absl::ToInt64Milliseconds(limit));
  tensorflow::RunMetadata metadata;
  const auto moved = session_->Run(
      options, {{elements_, Tensor::Vector<int32_t>({elements})}, {value_, Tensor::Scalar(value)}},
      {moved_}, {}, &metadata);
  MR_RETURN_IF_ERROR(moved.status());
  const float first = (*moved)[0].flat<float>()[0];
  if (first != value) return Internal("Move: must bring ", value, ", got ", first);
  return absl::OkStatus();
}

int64_t WatchedCluster::UsedBytes(int task) { return AwaitSaid(task).used; }

int64_t WatchedCluster::PeakTensorBytes(int task) { return AwaitSaid(task).peak; }

WatchedCluster::Said WatchedCluster::AwaitSaid(int task) {
  Process* const process = ps(task);
  // The next line may have been on its way already.
  size_t from = process->lines().size();
  Said said;
  for (int i = 0; i < 2; ++i) {
    const auto line = process->WaitForLine("watched-end", kGuard, &from);
    EXPECT_OK(line);
    if (!line.ok()) return said;
    const std::vector<std::string> words = absl::StrSplit(*line, ' ');
    EXPECT_TRUE(words.size() == 4 && absl::SimpleAtoi(words[1], &said.used) &&
                absl::SimpleAtoi(words[2], &said.peak))
        << *line;
  }
  return said;
}

std::string WatchedCluster::Name(Way way) {
  switch (way) {
    case Way::kGrpc:
      return "Grpc";
    case Way::kUnix:
      return "Unix";
    case Way::kShared:
      return "Shared";
  }
  return "";
}

bool WatchedCluster::Await(absl::FunctionRef<bool()> is_so) {
  const absl::Time hang = absl::Now() + kGuard;
  while (!is_so()) {
    if (absl::Now() >= hang) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

}  // namespace millrace

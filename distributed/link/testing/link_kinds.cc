// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/testing/link_kinds.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "distributed/link/byte_link.h"
#include "distributed/link/in_process_link.h"
#include "distributed/link/testing/grpc_pair.h"
#include "distributed/link/testing/simulated_wire.h"
#include "distributed/link/testing/unix_pair.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr char kWorkerTask[] = "/job:worker/replica:0/task:0";
constexpr char kPsTask[] = "/job:ps/replica:0/task:0";
constexpr int64_t kPoolBytes = int64_t{1} << 30;
constexpr uint64_t kWorkerIncarnation = 41, kPsIncarnation = 42;

class InProcessPair : public LinkPair {
 public:
  ~InProcessPair() override {
    for (const auto& end : {worker_end, ps_end}) {
      if (end->link() != nullptr) end->link()->Close(absl::AbortedError("the test is over"));
      end->LetGo();
    }
  }
  void Settle() override {
    if (worker_end->link() != nullptr || worker_end->num_losses() > 0) return;
    OpenInProcessLink({kWorkerTask, kWorkerIncarnation}, worker_end, {kPsTask, kPsIncarnation},
                      ps_end);
  }
};

class SimulatedPair : public LinkPair {
 public:
  explicit SimulatedPair(uint64_t seed) : time_(seed) {}
  ~SimulatedPair() override {
    for (const auto& end : {worker_end, ps_end}) {
      if (end->link() != nullptr) end->link()->Close(absl::AbortedError("the test is over"));
    }
    EXPECT_TRUE(time_.Run());
    for (const auto& end : {worker_end, ps_end}) end->LetGo();
  }
  void Settle() override {
    if (!is_open_) Open();
    EXPECT_TRUE(time_.Run());
  }

 private:
  void Open() {
    is_open_ = true;
    const auto way = SimulatedWay::Make(&time_, SimulatedWay::Options());
    ByteLinkOptions worker;
    worker.task = kWorkerTask;
    worker.incarnation = kWorkerIncarnation;
    worker.peer_task = kPsTask;
    worker.peer_incarnation = kPsIncarnation;
    worker.clock = time_.clock();
    ByteLinkOptions ps;
    ps.task = kPsTask;
    ps.incarnation = kPsIncarnation;
    ps.clock = time_.clock();
    ByteLink::Open(way->TakeWire(0), worker_end, worker);
    ByteLink::Open(way->TakeWire(1), ps_end, ps);
  }

  SeededTime time_;
  bool is_open_ = false;
};

}  // namespace

// --- RecordingEnd

void RecordingEnd::Line(std::string line) {
  MutexLock lock(&mu_);
  lines_.push_back(std::move(line));
}

std::vector<std::string> RecordingEnd::lines() const {
  MutexLock lock(&mu_);
  return lines_;
}

std::vector<SentTensor> RecordingEnd::tensors() const {
  MutexLock lock(&mu_);
  return tensors_;
}

uint64_t RecordingEnd::received(int64_t step_id) const {
  MutexLock lock(&mu_);
  uint64_t sum = 0;
  for (const auto& [step, tensors] : received_) sum += step == step_id ? tensors : 0;
  return sum;
}

Status RecordingEnd::lost() const {
  MutexLock lock(&mu_);
  return lost_;
}

bool RecordingEnd::lost_by_peer() const {
  MutexLock lock(&mu_);
  return lost_by_peer_;
}

int RecordingEnd::num_losses() const {
  MutexLock lock(&mu_);
  return num_losses_;
}

EndFrame RecordingEnd::last_end() const {
  MutexLock lock(&mu_);
  return last_end_;
}

std::shared_ptr<Link> RecordingEnd::link() const {
  MutexLock lock(&mu_);
  return link_;
}

void RecordingEnd::LetGo() {
  std::shared_ptr<Link> link;
  MutexLock lock(&mu_);
  link.swap(link_);
}

void RecordingEnd::OnOpen(std::shared_ptr<Link> link) {
  Line(absl::StrCat("open ", link->peer().task, " ", link->peer().incarnation));
  MutexLock lock(&mu_);
  link_ = std::move(link);
}

void RecordingEnd::OnBind(BindFrame bind) {
  Line(absl::StrCat("bind ", bind.number, " ", bind.session_handle, " ", bind.graph_handle));
}

void RecordingEnd::OnUnbind(uint64_t number) { Line(absl::StrCat("unbind ", number)); }

void RecordingEnd::OnRun(RunFrame run) {
  if (writes_down) {
    Line(absl::StrCat("run step=", run.step_id, " number=", run.number,
                      " timeout_us=", run.timeout_us, " args=", run.num_args,
                      run.wants_trace ? " trace" : "", run.wants_graphs ? " graphs" : ""));
  }
  if (on_run) on_run(run);
}

void RecordingEnd::OnTensors(SentTensors tensors) {
  if (writes_down) {
    std::vector<std::string> indices;
    for (const SentTensor& tensor : tensors.tensors) {
      indices.push_back(absl::StrCat(tensor.index));
    }
    Line(absl::StrCat("tensors step=", tensors.step_id, " ", absl::StrJoin(indices, " ")));
    MutexLock lock(&mu_);
    tensors_.insert(tensors_.end(), tensors.tensors.begin(), tensors.tensors.end());
  }
  if (on_tensors) on_tensors(tensors);
}

void RecordingEnd::OnEnd(EndFrame end) {
  Line(absl::StrCat("end step=", end.step_id, " ",
                    end.status.ok() ? "OK" : std::string(end.status.message())));
  MutexLock lock(&mu_);
  last_end_ = std::move(end);
}

void RecordingEnd::OnCancel(int64_t step_id, const Status& status) {
  Line(absl::StrCat("cancel step=", step_id, " ", status.message()));
}

void RecordingEnd::OnReceived(int64_t step_id, uint64_t tensors) {
  // No line: when they come is not promised.
  MutexLock lock(&mu_);
  received_.push_back({step_id, tensors});
}

void RecordingEnd::OnRefused(int64_t step_id, const Status& status) {
  Line(absl::StrCat("refused step=", step_id, " ", status.message()));
}

void RecordingEnd::OnLost(const Status& status, bool by_peer) {
  Line(absl::StrCat("lost ", by_peer ? "by peer: " : "", status.message()));
  MutexLock lock(&mu_);
  lost_ = status;
  lost_by_peer_ = by_peer;
  ++num_losses_;
}

// --- Kinds

std::vector<LinkKind> LinkKinds() {
  const std::vector<LinkKind> all = {
      {"in_process", [] { return std::make_unique<InProcessPair>(); }},
      {"simulated", [] { return std::make_unique<SimulatedPair>(1); }},
      {"grpc",
       [] {
         return MakeGrpcPair({kWorkerTask, kWorkerIncarnation}, {kPsTask, kPsIncarnation});
       }},
      {"unix",
       [] {
         return MakeUnixPair({kWorkerTask, kWorkerIncarnation}, {kPsTask, kPsIncarnation});
       }},
      {"pools",
       [] {
         return MakeUnixPair({kWorkerTask, kWorkerIncarnation}, {kPsTask, kPsIncarnation},
                             kPoolBytes);
       }},
  };
  const char* const wanted = std::getenv("MILLRACE_LINK_KINDS");
  if (wanted == nullptr || *wanted == '\0') return all;
  std::vector<LinkKind> kinds;
  for (const absl::string_view name : absl::StrSplit(wanted, ',')) {
    const auto kind = std::find_if(all.begin(), all.end(),
                                   [&](const LinkKind& known) { return known.name == name; });
    if (kind == all.end()) {
      ADD_FAILURE() << "MILLRACE_LINK_KINDS: links must be "
                    << absl::StrJoin(all, " or ",
                                     [](std::string* out, const LinkKind& known) {
                                       absl::StrAppend(out, known.name);
                                     })
                    << ", got " << name;
    } else {
      kinds.push_back(*kind);
    }
  }
  return kinds;
}

}  // namespace millrace

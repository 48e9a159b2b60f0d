// SPDX-License-Identifier: Apache-2.0
//
// What checkpoints cost the loop that writes them: steps per second of a MonitoredSession with a
// CheckpointSaverHook each five seconds, of those without, in turns. The model is one dense
// variable that every step updates whole. Arguments: directory, bytes of the variable, seconds of
// each turn, rounds. A line of JSON per round; the last has the medians.
//
//   bazel run -c opt //train:checkpoint_stall_benchmark -- DIR 100000000 20 3

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/hooks/hooks.h"
#include "train/monitored_session.h"

namespace millrace {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(5);

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

struct Turn {
  double steps_per_s = 0;
  double longest_step_s = 0;
  int64_t saves = 0;
};

Turn Train(const std::string& directory, int64_t floats, double seconds, bool with_checkpoints) {
  Scope root;
  const Variable step = GlobalStep(root);
  const Variable w = MakeVariable(root.WithName("w"),
                                  Fill(root, Const<int64_t>(root, {floats}), Const(root, 1.f)));
  const Operation sub =
      AssignSubVariableOp(root.WithName("update"), w.handle,
                          Fill(root, Const<int64_t>(root, {floats}), Const(root, 1e-6f)));
  const Operation count = AssignAddVariableOp(root.WithName("count").WithControlDependencies({sub}),
                                              step.handle, Const(root, int64_t{1}));
  CheckpointSaverHook saver({.checkpoint_dir = directory, .every = kPeriod});
  MonitoredSessionOptions options;
  if (with_checkpoints) options.hooks = {&saver};
  Turn turn;
  {
    const auto session = SingularMonitoredSession(root, {}, std::move(options));
    Must(session.status());
    const auto prepared = (*session)->Prepare({}, {}, {count});
    Must(prepared.status());
    int64_t steps = 0;
    const double begin = Now();
    double last = begin;
    while (last < begin + seconds) {
      Must(prepared->RunInto({}, {}));
      const double now = Now();
      turn.longest_step_s = std::max(turn.longest_step_s, now - last);
      last = now;
      ++steps;
    }
    turn.steps_per_s = static_cast<double>(steps) / (last - begin);
    turn.saves = saver.stats().saves;
  }
  FileSystem::Posix()->RecursivelyDelete(directory).IgnoreError();
  return turn;
}

int Main(const std::string& directory, int64_t bytes, double seconds, int rounds) {
  const int64_t floats = bytes / static_cast<int64_t>(sizeof(float));
  std::map<std::string, std::vector<double>> figures;
  const auto print = [](const std::string& head, const std::map<std::string, double>& values) {
    std::string line;
    for (const auto& [name, value] : values) absl::StrAppend(&line, ", \"", name, "\": ", value);
    std::printf("{%s%s}\n", head.c_str(), line.c_str());
    std::fflush(stdout);
  };
  for (int round = 0; round < rounds; ++round) {
    Turn with, without;
    for (const bool first : {true, false}) {
      const bool saves = first == (round % 2 == 0);
      (saves ? with : without) = Train(JoinPath(directory, "run"), floats, seconds, saves);
    }
    const std::map<std::string, double> now = {
        {"steps_per_s", without.steps_per_s},
        {"steps_per_s_with_checkpoints", with.steps_per_s},
        {"stalled", 1 - with.steps_per_s / without.steps_per_s},
        {"longest_step_s", without.longest_step_s},
        {"longest_step_s_with_checkpoints", with.longest_step_s},
        {"saves", static_cast<double>(with.saves)}};
    for (const auto& [name, value] : now) figures[name].push_back(value);
    print(absl::StrCat("\"round\": ", round), now);
  }
  std::map<std::string, double> medians;
  for (auto& [name, values] : figures) {
    std::sort(values.begin(), values.end());
    medians[name] = values[values.size() / 2];
  }
  print(absl::StrCat("\"median_of\": ", rounds), medians);
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "checkpoint_stall_benchmark DIR [BYTES [SECONDS [ROUNDS]]]\n");
    return 2;
  }
  return millrace::Main(argv[1], argc > 2 ? std::atoll(argv[2]) : 100000000,
                        argc > 3 ? std::atof(argv[3]) : 20, argc > 4 ? std::atoi(argv[4]) : 3);
}

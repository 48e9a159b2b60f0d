// SPDX-License-Identifier: Apache-2.0
//
// What a save costs: steps per second of two workers with and without a save meanwhile, memory
// above the variables, and the time of a save and a restore against what the same bytes cost
// without us, alternating. Arguments: directory, rows (of 64 floats; 4,194,304 are 1 GiB), rounds,
// and "slot" for Adagrad (a second table) in place of SGD. One line of JSON per round; the last has
// the medians.
//
// A save is compared with `dd conv=fsync` of the same file: both copy memory into the page cache
// and wait for the disk.
//
// A restore is compared with one thread's reads of the same file, from the page cache, a MiB at a
// time, into tensors of the variables' sizes, from the variables' allocator:
//   first   each in a process of its own, as after a start: the memory is new to the process, and
//           both have its pages faulted in and cleared. The time runs from Restore (or the first
//           allocation) on. Before, each has touched as much memory and given it back: on a virtual
//           machine memory that is free for seconds goes back to the host, and the first thread to
//           want it again pays ten times what reading costs, whatever he does with it.
//   again   in a process that has variables, and the memory of the ones before, already.
// It is not compared with `dd of=/dev/null`, which runs next to it (dd_read): dd reads into one MiB
// over and over, which stays in the cache of the core and never faults, while a variable must have
// its memory.

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/state/resource_rows.h"
#include "ops/state/state.h"
#include "ops/training/training_ops.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

constexpr int64_t kColumns = 64;
constexpr int64_t kBatch = 2048;
constexpr int kWorkers = 2;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double SecondsOf(const std::function<void()>& work) {
  const double begin = Now();
  work();
  return Now() - begin;
}
void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
// CPU time of this process, or of the programs that it has run.
double CpuSeconds(int whose) {
  rusage usage;
  getrusage(whose, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}
// Memory of this process that is no file's.
int64_t AnonymousBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    int64_t kilobytes = 0;
    if (absl::StartsWith(line, "RssAnon:") && std::sscanf(line.c_str(), "RssAnon: %ld", &kilobytes))
      return kilobytes << 10;
  }
  return 0;
}
struct Cost {
  double seconds = 0;
  double cpu_seconds = 0;
};
Cost CostOf(const std::function<void()>& work) {
  const double cpu = CpuSeconds(RUSAGE_SELF);
  Cost cost;
  cost.seconds = SecondsOf(work);
  cost.cpu_seconds = CpuSeconds(RUSAGE_SELF) - cpu;
  return cost;
}
double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One thread reads the file, as dd does, into new tensors.
void ReadIntoTensors(const std::string& file, int64_t rows, int num_tables) {
  auto opened = FileSystem::Posix()->NewRandomAccessFile(file);
  Must(opened.status());
  std::vector<Tensor> tables;
  uint64_t offset = 0;
  for (int i = 0; i < num_tables; ++i) {
    tables.push_back(*Tensor::Allocate(DT_FLOAT, *Shape::Make({rows, kColumns})));
    const absl::Span<char> bytes = tables.back().mutable_bytes();
    for (size_t at = 0; at < bytes.size(); at += 1 << 20) {
      const size_t n = std::min<size_t>(bytes.size() - at, 1 << 20);
      Must((*opened)->Read(offset, n, bytes.data() + at));
      offset += n;
    }
  }
}

struct Model {
  Model(int64_t rows, bool with_slot) {
    const Output dims = Const<int64_t>(root, {rows, kColumns});
    table = MakeVariable(root.WithName("table"), Fill(root, dims, Const(root, 1.0f)));
    ids = Placeholder(root.WithName("ids"), DT_INT64, {kBatch});
    const Output rate = Const(root, 0.01f);
    const Output read = ResourceGather(root, table.handle, ids, DT_FLOAT);
    if (with_slot) {
      slot = MakeVariable(root.WithName("table/Adagrad"), Fill(root, dims, Const(root, 0.1f)));
      step = ResourceSparseApplyAdagrad(root, table.handle, slot.handle, rate, read, ids);
    } else {
      step = ResourceScatterSub(root, table.handle, ids, read);
    }
    init = GlobalVariablesInitializer(root);
  }
  Scope root;
  Variable table, slot;
  Output ids;
  Operation step, init;
};

// Has the host supply so much memory, which is then free.
void TouchMemory(int64_t rows, bool with_slot) {
  const size_t size = static_cast<size_t>(rows * kColumns) * sizeof(float) * (with_slot ? 2 : 1);
  void* const memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Must(memory != MAP_FAILED ? absl::OkStatus() : absl::UnknownError("mmap"));
  (void)madvise(memory, size, MADV_HUGEPAGE);
  std::memset(memory, 1, size);
  munmap(memory, size);
}

int Say(const Cost& cost) {
  std::printf("%f %f\n", cost.seconds, cost.cpu_seconds);
  return 0;
}

// In a process of its own.
int FirstRestore(const std::string& checkpoint, int64_t rows, bool with_slot) {
  Model m(rows, with_slot);
  auto saver = Saver::Make(m.root);
  Must(saver.status());
  auto session = NewSession();
  Must(session.status());
  Must((*session)->Extend(m.root));
  TouchMemory(rows, with_slot);
  return Say(CostOf([&] { Must((*saver)->Restore(session->get(), checkpoint)); }));
}
int FirstRead(const std::string& file, int64_t rows, bool with_slot) {
  TouchMemory(rows, with_slot);
  return Say(CostOf([&] { ReadIntoTensors(file, rows, with_slot ? 2 : 1); }));
}
// What such a process says.
Cost CostInAProcess(const std::string& arguments) {
  const std::string command = absl::StrCat("/proc/", getpid(), "/exe ", arguments);
  FILE* const output = popen(command.c_str(), "r");
  Cost cost;
  const bool said =
      output != nullptr && std::fscanf(output, "%lf %lf", &cost.seconds, &cost.cpu_seconds) == 2;
  Must(output != nullptr && pclose(output) == 0 && said ? absl::OkStatus()
                                                        : absl::UnknownError(command));
  return cost;
}

int Main(const std::string& directory, int64_t rows, int rounds, bool with_slot) {
  Model m(rows, with_slot);
  auto saver = Saver::Make(m.root, {.max_to_keep = 1, .write_meta_graph = false});
  Must(saver.status());
  auto session = NewSession();
  Must(session.status());
  Must((*session)->Extend(m.root));
  Must((*session)->Run({}, {}, {m.init.name()}).status());

  std::atomic<bool> stop{false};
  std::atomic<int64_t> steps{0};
  const auto train = [&](int seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    while (!stop) {
      Tensor ids = *Tensor::Allocate(DT_INT64, *Shape::Make({kBatch}));
      for (int64_t& id : ids.mutable_flat<int64_t>())
        id = static_cast<int64_t>(random() % static_cast<uint64_t>(rows));
      Must((*session)->Run({{m.ids.name(), ids}}, {}, {m.step.name()}).status());
      ++steps;
    }
  };
  const auto with_workers = [&](const std::function<void()>& work) {
    stop = false;
    std::vector<std::thread> workers;
    for (int i = 0; i < kWorkers; ++i) workers.emplace_back(train, i);
    work();
    stop = true;
    for (std::thread& worker : workers) worker.join();
  };
  const double bytes = static_cast<double>(rows * kColumns) * sizeof(float) * (with_slot ? 2 : 1);
  int64_t number = std::time(nullptr);
  std::string path;
  const auto save = [&] {
    const auto saved = (*saver)->Save(session->get(), JoinPath(directory, "ckpt"), ++number);
    Must(saved.status());
    path = *saved;
  };
  const std::string dd_file = JoinPath(directory, "dd");
  const auto dd = [&](const std::string& arguments) {
    const std::string command = absl::StrCat("dd bs=1M ", arguments, " status=none");
    return SecondsOf([&] {
      Must(std::system(command.c_str()) == 0 ? absl::OkStatus() : absl::UnknownError(command));
    });
  };

  save();
  Must(FileSystem::Posix()->RecursivelyCreateDirectory(directory));
  dd(absl::StrCat("if=", BundleDataPath(path, 0, 1), " of=", dd_file));
  with_workers([] { std::this_thread::sleep_for(std::chrono::seconds(2)); });  // all rows touched
  // The memory of what was there before.
  ReadIntoTensors(BundleDataPath(path, 0, 1), rows, with_slot ? 2 : 1);
  std::map<std::string, std::vector<double>> figures;
  for (int round = 0; round < rounds; ++round) {
    std::map<std::string, double> now;
    with_workers([&] {
      std::atomic<bool> saving{true};
      malloc_trim(0);
      const int64_t before = AnonymousBytes();
      int64_t most = before;
      std::thread watch([&] {
        while (saving) {
          most = std::max(most, AnonymousBytes());
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      });
      int64_t begin = steps;
      const double seconds = SecondsOf(save);
      now["steps_per_s_beside_save"] = static_cast<double>(steps - begin) / seconds;
      saving = false;
      watch.join();
      now["save_beside_steps_s"] = seconds;
      now["memory_above_mib"] = static_cast<double>(most - before) / (1 << 20);
      begin = steps;
      const double alone =
          SecondsOf([&] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
      now["steps_per_s"] = static_cast<double>(steps - begin) / alone;
    });
    // Both write a new file while the old one is there, so that both pay for new pages. dd copies
    // from memory, too: a save leaves its file out of the page cache.
    const auto into_cache = [&] {
      dd(absl::StrCat("if=", BundleDataPath(path, 0, 1), " of=/dev/null"));
    };
    const auto write_by_dd = [&] {
      into_cache();
      const double before = CpuSeconds(RUSAGE_CHILDREN);
      now["dd_fsync_mb_per_s"] =
          bytes / 1e6 /
          dd(absl::StrCat("if=", BundleDataPath(path, 0, 1), " of=", dd_file, "_new conv=fsync"));
      now["dd_fsync_cpu_s"] = CpuSeconds(RUSAGE_CHILDREN) - before;
      Must(FileSystem::Posix()->RenameFile(dd_file + "_new", dd_file));
    };
    if (round % 2 == 0) write_by_dd();
    double cpu = CpuSeconds(RUSAGE_SELF);
    now["save_mb_per_s"] = bytes / 1e6 / SecondsOf(save);
    now["save_cpu_s"] = CpuSeconds(RUSAGE_SELF) - cpu;
    if (round % 2 != 0) write_by_dd();
    const std::string data = BundleDataPath(path, 0, 1);
    const std::string model = absl::StrCat(" ", rows, with_slot ? " slot" : "");
    // In turns: which is first is the other in the next round.
    const auto measure = [&](const char* name, const std::function<Cost()>& work) {
      const Cost cost = work();
      now[absl::StrCat(name, "_mb_per_s")] = bytes / 1e6 / cost.seconds;
      now[absl::StrCat(name, "_cpu_s")] = cost.cpu_seconds;
    };
    const auto restore = [&] {
      measure("restore_again",
              [&] { return CostOf([&] { Must((*saver)->Restore(session->get(), path)); }); });
      measure("restore_first",
              [&] { return CostInAProcess(absl::StrCat("first_restore ", path, model)); });
    };
    const auto read = [&] {
      measure("read_again",
              [&] { return CostOf([&] { ReadIntoTensors(data, rows, with_slot ? 2 : 1); }); });
      measure("read_first",
              [&] { return CostInAProcess(absl::StrCat("first_read ", data, model)); });
    };
    into_cache();
    if (round % 2 == 0) read();
    restore();
    if (round % 2 != 0) read();
    now["dd_read_mb_per_s"] = bytes / 1e6 / dd(absl::StrCat("if=", data, " of=/dev/null"));
    now["steps_ratio"] = now["steps_per_s_beside_save"] / now["steps_per_s"];
    now["save_ratio"] = now["save_mb_per_s"] / now["dd_fsync_mb_per_s"];
    for (const char* const which : {"first", "again"}) {
      now[absl::StrCat("restore_", which, "_cpu_ratio")] =
          now[absl::StrCat("read_", which, "_cpu_s")] /
          now[absl::StrCat("restore_", which, "_cpu_s")];
      now[absl::StrCat("restore_", which, "_ratio")] =
          now[absl::StrCat("restore_", which, "_mb_per_s")] /
          now[absl::StrCat("read_", which, "_mb_per_s")];
    }
    std::string line;
    for (const auto& [name, value] : now) {
      figures[name].push_back(value);
      absl::StrAppend(&line, line.empty() ? "" : ", ", "\"", name, "\": ", value);
    }
    std::printf("{\"round\": %d, %s}\n", round, line.c_str());
    std::fflush(stdout);
  }
  std::string line;
  for (const auto& [name, values] : figures) {
    absl::StrAppend(&line, line.empty() ? "" : ", ", "\"", name, "\": ", Median(values));
  }
  std::printf("{\"median_of\": %d, \"rows\": %ld, \"slot\": %s, %s}\n", rounds, rows,
              with_slot ? "true" : "false", line.c_str());
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  int64_t rows = int64_t{4} << 20;
  int rounds = 5;
  const std::string what = argc >= 4 ? argv[1] : "";
  if ((what == "first_restore" || what == "first_read") && absl::SimpleAtoi(argv[3], &rows)) {
    return (what == "first_read" ? millrace::FirstRead : millrace::FirstRestore)(argv[2], rows,
                                                                                 argc == 5);
  }
  const bool fits = argc >= 2 && argc <= 5 &&
                    (argc < 3 || (absl::SimpleAtoi(argv[2], &rows) && rows > 0)) &&
                    (argc < 4 || (absl::SimpleAtoi(argv[3], &rounds) && rounds > 0)) &&
                    (argc < 5 || std::string(argv[4]) == "slot");
  if (!fits) {
    std::fprintf(stderr, "usage: %s directory [rows [rounds [slot]]]\n", argv[0]);
    return 2;
  }
  return millrace::Main(argv[1], rows, rounds, argc == 5);
}

// SPDX-License-Identifier: Apache-2.0
#include "tests/failures/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"
#include "core/tensor.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// One run of a step.
struct Try {
  int64_t row = 0;
  int64_t begin = 0;
  int64_t end = kNever;  // when its trainer knew how it ended, or had died
  bool acked = false;
};

// One checkpoint, from the moment when it was begun.
struct Save {
  int64_t begin = 0, end = 0;
  std::string path;
  std::string process;  // of the chief
};

// From when on the variables have values that were made anew.
struct Life {
  int64_t not_before = 0;  // a moment at which the former life was over
  int64_t begin = 0;       // its chief's session was ready
  std::string restored;    // "": initialised
};

struct Session {
  int64_t begin = 0;
  std::string process;
};

struct History {
  std::vector<Try> tries;
  std::vector<Save> saves;        // by time
  std::vector<Life> lives;        // by time
  std::vector<Session> sessions;  // of chiefs
  int64_t lost = 0;
};

// What a checkpoint holds; of synchronous training `shares` and `shared_sum`.
struct Values {
  std::vector<int64_t> marks;
  int64_t sum = 0, step = 0;
  std::vector<double> shares;
  double shared_sum = 0;

  int64_t rows() const { return static_cast<int64_t>(std::max(marks.size(), shares.size())); }
};

StatusOr<Values> ReadValues(const std::string& path, bool is_synchronous) {
  MR_ASSIGN_OR_RETURN(const auto reader, BundleReader::Open(FileSystem::Posix(), path));
  MR_ASSIGN_OR_RETURN(const Tensor marks, reader->Read(kMarksName));
  MR_ASSIGN_OR_RETURN(const Tensor sum, reader->Read(kSumName));
  MR_ASSIGN_OR_RETURN(const Tensor step, reader->Read("global_step"));
  Values values;
  values.step = step.scalar<int64_t>();
  if (is_synchronous) {
    const auto rows = marks.flat<double>();
    values.shares.assign(rows.begin(), rows.end());
    values.shared_sum = sum.scalar<double>();
  } else {
    const auto rows = marks.flat<int64_t>();
    values.marks.assign(rows.begin(), rows.end());
    values.sum = sum.scalar<int64_t>();
  }
  return values;
}

Status ReadHistory(const std::string& task, const std::string& path, History* history) {
  MR_ASSIGN_OR_RETURN(const std::vector<LedgerEvent> events, ReadLedger(path));
  int64_t over = 0;  // when the session before was over
  std::string process;
  Try* open = nullptr;  // the one that is under way
  int64_t begun = -1;   // the save
  for (const LedgerEvent& event : events) {
    if (event.what == "start") {
      // Whatever the process before it had begun, nobody waits for it any more.
      if (open != nullptr) open->end = event.time_ns;
      open = nullptr;
      begun = -1;
      over = event.time_ns;
      process = absl::StrCat(task, " at ", event.time_ns);
    } else if (event.what == "session") {
      if (event.fields.size() != 3) return absl::DataLossError(absl::StrCat(path, ": session"));
      const std::string& how = event.fields[0];
      if (how != "waited") history->sessions.push_back({event.time_ns, process});
      if (how == "initialized" || how == "restored") {
        history->lives.push_back({over, event.time_ns, how == "restored" ? event.fields[2] : ""});
      }
    } else if (event.what == "try") {
      open = &history->tries.emplace_back(Try{.row = event.row(), .begin = event.time_ns});
    } else if (event.what == "ack" || event.what == "lost") {
      if (open == nullptr || open->row != event.row()) {
        return absl::DataLossError(
            absl::StrCat(path, ": ", event.what, " of row ", event.row(), " must follow its try"));
      }
      open->acked = event.what == "ack";
      open->end = event.time_ns;
      open = nullptr;
      if (event.what == "lost") {
        over = event.time_ns;
        ++history->lost;
      }
    } else if (event.what == "save") {
      begun = event.time_ns;
    } else if (event.what == "unsaved") {
      begun = -1;
      over = event.time_ns;  // a session that is lost while it saves, as well
      ++history->lost;
    } else if (event.what == "saved") {
      if (begun < 0 || event.fields.size() != 1) {
        return absl::DataLossError(absl::StrCat(path, ": saved must follow its save"));
      }
      history->saves.push_back({begun, event.time_ns, event.fields[0], process});
      begun = -1;
    }
  }
  return absl::OkStatus();
}

// Has each chief committed only what was its own?
Status CheckOwners(const History& history) {
  for (const Save& save : history.saves) {
    // The chief that had the run when it was begun.
    const Session* owner = nullptr;
    for (const Session& session : history.sessions) {
      if (session.begin <= save.begin && (owner == nullptr || session.begin > owner->begin)) {
        owner = &session;
      }
    }
    if (owner == nullptr || owner->process == save.process) continue;
    return absl::DataLossError(absl::StrCat(save.path, ": must be committed by ", owner->process,
                                            ", which had the run, got ", save.process));
  }
  return absl::OkStatus();
}

// The number at the end of "run/model.ckpt-120".
int64_t StepOf(const std::string& checkpoint) {
  int64_t step = -1;
  static_cast<void>(absl::SimpleAtoi(checkpoint.substr(checkpoint.rfind('-') + 1), &step));
  return step;
}

// Does `save` hold what its life began with and what was done since, and nothing else?
Status Compare(const Save& save, const Life& life, const Values& base, const Values& found,
               const std::vector<Try>& tries, int64_t* uncertain) {
  const auto wrong = [&](absl::string_view what, int64_t row, int64_t at_least, int64_t at_most,
                         int64_t got) {
    return absl::DataLossError(absl::StrCat(
        save.path, ": ", what, row < 0 ? "" : absl::StrCat(" ", row), " must be in [", at_least,
        ",", at_most, "] by the ledger, got ", got, "; the variables live since ",
        life.restored.empty() ? "their initialisation" : life.restored));
  };
  std::vector<int64_t> at_least = base.marks, at_most = base.marks;
  const int64_t rows = static_cast<int64_t>(base.marks.size());
  if (static_cast<int64_t>(found.marks.size()) != rows) {
    return wrong("number of rows", -1, rows, rows, static_cast<int64_t>(found.marks.size()));
  }
  *uncertain = 0;
  int64_t uncertain_amount = 0;
  for (const Try& t : tries) {
    if (t.row < 0 || t.row >= rows) return wrong("number of a row", -1, 0, rows - 1, t.row);
    // The servers of an earlier life knew it under names that nobody has now.
    if (t.begin > save.end || t.end <= life.not_before) continue;
    const bool certain = t.acked && t.begin >= life.not_before && t.end <= save.begin;
    ++at_most[static_cast<size_t>(t.row)];
    if (certain) {
      ++at_least[static_cast<size_t>(t.row)];
    } else {
      ++*uncertain;
      uncertain_amount += AmountOf(t.row);
    }
  }
  int64_t steps = 0, amount = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const size_t i = static_cast<size_t>(row);
    const int64_t got = found.marks[i];
    if (got < at_least[i]) {
      return wrong("there is a hole: row", row, at_least[i], at_most[i], got);
    }
    if (got > at_most[i]) {
      return wrong("a step is there too often: row", row, at_least[i], at_most[i], got);
    }
    steps += got - base.marks[i];
    amount += (got - base.marks[i]) * AmountOf(row);
  }
  // A step that was cut off may have changed one variable and not the next.
  const int64_t step = found.step - base.step, sum = found.sum - base.sum;
  if (std::abs(step - steps) > *uncertain) {
    return wrong("the growth of global_step", -1, steps - *uncertain, steps + *uncertain, step);
  }
  if (std::abs(sum - amount) > uncertain_amount) {
    return wrong("the growth of sum", -1, amount - uncertain_amount, amount + uncertain_amount,
                 sum);
  }
  return absl::OkStatus();
}

// Shares are sums of a few quotients.
constexpr double kRounding = 1e-6;

// The number of trainers of the step that gave this share; 0: no step does.
int64_t TrainersOf(double share, int64_t trainers) {
  for (int64_t n = 1; n <= trainers; ++n) {
    if (std::abs(share - 1.0 / static_cast<double>(n)) < kRounding) return n;
  }
  return 0;
}

// Compare, in synchronous training: of the rules in ledger.h.
Status CompareShares(const Save& save, const Life& life, const Values& base, const Values& found,
                     const std::vector<Try>& tries, int64_t trainers, LedgerReport* report) {
  const auto wrong = [&](absl::string_view what, int64_t row, const std::string& rule, double got) {
    return absl::DataLossError(
        absl::StrCat(save.path, ": ", what, row < 0 ? "" : absl::StrCat(" ", row), " must be ",
                     rule, " by the ledger, got ", got, "; the variables live since ",
                     life.restored.empty() ? "their initialisation" : life.restored));
  };
  const int64_t rows = base.rows();
  if (found.rows() != rows) {
    return wrong("number of rows", -1, absl::StrCat(rows), static_cast<double>(found.rows()));
  }
  std::vector<int64_t> tried(static_cast<size_t>(rows)), acked(static_cast<size_t>(rows));
  int64_t cut_off = 0;
  report->uncertain = report->dropped = report->shared = 0;
  for (const Try& t : tries) {
    if (t.row < 0 || t.row >= rows) {
      return wrong("number of a row", -1, absl::StrCat("in [0,", rows - 1, "]"),
                   static_cast<double>(t.row));
    }
    if (t.begin > save.end || t.end <= life.not_before) continue;
    ++tried[static_cast<size_t>(t.row)];
    if (!t.acked) ++cut_off;
    if (t.acked && t.begin >= life.not_before && t.end <= save.begin) {
      ++acked[static_cast<size_t>(t.row)];
    } else {
      ++report->uncertain;
    }
  }
  double shares = 0, amount = 0;
  std::vector<int64_t> with_trainers(static_cast<size_t>(trainers) + 1);
  for (int64_t row = 0; row < rows; ++row) {
    const size_t i = static_cast<size_t>(row);
    const double got = found.shares[i] - base.shares[i];
    shares += got;
    amount += got * static_cast<double>(AmountOf(row));
    if (std::abs(got) < kRounding) {
      report->dropped += acked[i];
      continue;
    }
    if (got < 0 || got > static_cast<double>(tried[i]) + kRounding) {
      return wrong("a step is there too often: row", row, absl::StrCat("in [0,", tried[i], "]"),
                   got);
    }
    if (tried[i] != 1) continue;
    const int64_t n = TrainersOf(got, trainers);
    if (n == 0) {
      return wrong("row", row, absl::StrCat("1 / n of n <= ", trainers, " trainers"), got);
    }
    ++with_trainers[static_cast<size_t>(n)];
    if (n > 1) ++report->shared;
  }
  const double steps = static_cast<double>(found.step - base.step);
  const double sum = found.shared_sum - base.shared_sum;
  const double off = static_cast<double>(cut_off) + kRounding * (1 + steps);
  if (std::abs(shares - steps) > off) {
    return wrong("the shares of all rows", -1, absl::StrCat(steps, ", as the steps, +- ", off),
                 shares);
  }
  // An amount is less than 100.
  if (std::abs(sum - amount) > 100 * off) {
    return wrong("the growth of sum", -1, absl::StrCat(amount, " +- ", 100 * off), sum);
  }
  if (cut_off > 0) return absl::OkStatus();
  for (int64_t n = 2; n <= trainers; ++n) {
    const int64_t got = with_trainers[static_cast<size_t>(n)];
    if (got % n == 0) continue;
    return wrong(absl::StrCat("the number of rows with 1 / ", n), -1,
                 absl::StrCat("a multiple of ", n), static_cast<double>(got));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<Ledger> Ledger::Open(const std::string& path, int64_t first_row, int64_t num_rows) {
  int64_t next = first_row;
  MR_ASSIGN_OR_RETURN(const std::vector<LedgerEvent> events, ReadLedger(path));
  for (const LedgerEvent& event : events) {
    if (event.what == "try") next = std::max(next, event.row() + 1);
  }
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return absl::UnknownError(absl::StrCat("Ledger ", path, ": ", strerror(errno)));
  return Ledger(fd, next, first_row + num_rows);
}

Ledger::Ledger(Ledger&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), next_row_(other.next_row_), end_row_(other.end_row_) {}

Ledger::~Ledger() {
  if (fd_ >= 0) close(fd_);
}

StatusOr<int64_t> Ledger::NextRow() {
  if (next_row_ >= end_row_) {
    return OutOfRange("Ledger: the next row must be below ", end_row_, ", got ", next_row_);
  }
  return next_row_++;
}

void Ledger::Write(absl::string_view what, absl::string_view fields) {
  const std::string line = absl::StrCat(NowNs(), " ", what, fields.empty() ? "" : " ",
                                        absl::StrReplaceAll(fields, {{"\n", " "}}), "\n");
  if (write(fd_, line.data(), line.size()) == static_cast<ssize_t>(line.size())) return;
  std::fprintf(stderr, "Ledger: a line could not be written: %s\n", strerror(errno));
  _exit(2);
}

int64_t LedgerEvent::row() const {
  int64_t row = -1;
  if (!fields.empty()) static_cast<void>(absl::SimpleAtoi(fields[0], &row));
  return row;
}

StatusOr<std::vector<LedgerEvent>> ReadLedger(const std::string& path) {
  std::vector<LedgerEvent> events;
  if (!FileSystem::Posix()->FileExists(path)) return events;
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(FileSystem::Posix(), path));
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  lines.pop_back();  // behind the last line's end
  for (const std::string& line : lines) {
    std::vector<std::string> fields = absl::StrSplit(line, ' ');
    LedgerEvent event;
    if (fields.size() < 2 || !absl::SimpleAtoi(fields[0], &event.time_ns)) {
      return absl::DataLossError(absl::StrCat(path, ": not a line of a ledger: ", line));
    }
    event.what = fields[1];
    event.fields.assign(fields.begin() + 2, fields.end());
    events.push_back(std::move(event));
  }
  return events;
}

std::string LedgerReport::ToString() const {
  return absl::StrCat(
      tries, " steps tried, ", acked, " acknowledged, ", lost, " answers lost, ", lives,
      " lives of the variables, ", rolled_back, " acknowledged steps lost with them; ", checkpoints,
      " checkpoints agree, the last one at step ", final_step, " with ", repeated,
      " steps that are there once more, after a lost answer, and ", uncertain,
      " steps that may be in it or not",
      shared + dropped == 0
          ? ""
          : absl::StrCat("; ", shared, " gradients are in steps of several trainers, ", dropped,
                         " acknowledged ones in none"));
}

StatusOr<LedgerReport> AuditLedger(const std::string& directory,
                                   const std::map<std::string, std::string>& files, int64_t sync) {
  History history;
  for (const auto& [task, path] : files) MR_RETURN_IF_ERROR(ReadHistory(task, path, &history));
  const auto by_begin = [](const auto& a, const auto& b) { return a.begin < b.begin; };
  std::sort(history.saves.begin(), history.saves.end(), by_begin);
  std::sort(history.lives.begin(), history.lives.end(), by_begin);
  if (history.lives.empty()) {
    return absl::DataLossError(absl::StrCat(directory, ": a chief must have begun, got none"));
  }
  MR_RETURN_IF_ERROR(CheckOwners(history));
  LedgerReport report;
  report.lost = history.lost;
  report.tries = static_cast<int64_t>(history.tries.size());
  for (const Try& t : history.tries) report.acked += t.acked;
  report.lives = static_cast<int64_t>(history.lives.size());

  for (size_t i = 0; i < history.lives.size(); ++i) {
    const Life& life = history.lives[i];
    const int64_t life_end =
        i + 1 < history.lives.size() ? history.lives[i + 1].begin : int64_t{kNever};
    // The newest that was committed before it.
    std::string newest;
    int64_t newest_begin = 0;
    for (const Save& save : history.saves) {
      if (save.end < life.not_before) {
        newest = save.path;
        newest_begin = save.begin;
      }
    }
    if (StepOf(life.restored) < StepOf(newest)) {
      return absl::DataLossError(absl::StrCat(
          directory, ": life ", i, " must begin with ", newest, ", which was committed, got ",
          life.restored.empty() ? "an initialisation" : life.restored));
    }
    for (const Try& t : history.tries) {
      if (i > 0 && t.acked && t.end < life.not_before && t.end > newest_begin &&
          t.begin >= history.lives[i - 1].not_before) {
        ++report.rolled_back;
      }
    }
    Values base;
    if (!life.restored.empty()) {
      MR_ASSIGN_OR_RETURN(base, ReadValues(life.restored, sync > 0));
    }
    for (size_t k = 0; k < history.saves.size(); ++k) {
      const Save& save = history.saves[k];
      if (save.begin < life.begin || save.begin >= life_end) continue;
      // Written again under the same name: what is there now is the later one's.
      if (k + 1 < history.saves.size() && history.saves[k + 1].path == save.path) continue;
      MR_ASSIGN_OR_RETURN(const Values found, ReadValues(save.path, sync > 0));
      if (base.rows() == 0) {
        base.marks.assign(found.marks.size(), 0);
        base.shares.assign(found.shares.size(), 0);
      }
      MR_RETURN_IF_ERROR(sync > 0
                             ? CompareShares(save, life, base, found, history.tries, sync, &report)
                             : Compare(save, life, base, found, history.tries, &report.uncertain));
      ++report.checkpoints;
      report.final_step = found.step;
      report.repeated = 0;
      for (const int64_t marks : found.marks) report.repeated += std::max<int64_t>(0, marks - 1);
    }
  }
  if (report.checkpoints == 0) {
    return absl::DataLossError(absl::StrCat(directory, ": there must be a checkpoint, got none"));
  }
  return report;
}

}  // namespace millrace

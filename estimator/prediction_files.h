// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_PREDICTION_FILES_H_
#define MILLRACE_ESTIMATOR_PREDICTION_FILES_H_

// PredictionFiles: the directory in which the tasks of a cluster write predictions together.
//
//   manifest.json                     what was predicted, of what, in which files; written last
//   predictions-00001-of-00004.jsonl  a part, whole
//   _job/job.json                     what is to be predicted; written first, by the chief
//   _job/part-00001.<token>           an attempt at a part, as far as it is
//   _job/part-00001.<token>.done      that the attempt is whole: rows, bytes, checksum
//   _job/run.json ...                 whose run it is, and its end (run/run_file.h)
//
// A part may be attempted several times, by several tasks at once: each attempt has a file of its
// own, and the chief chooses one that is whole. So every row is in the files that the manifest
// names once, whichever task is killed, comes again, or wakes up late.
//
//   of a part:   attempted -> whole -> chosen (renamed, by the chief) -> in the manifest
//
// Tasks must see one directory; files of others appear there late on network file systems.
//
// Thread-safety: thread-compatible; any number of processes.
// Failure: that of the files; DataLoss for a file that is none of these, by its name.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/status.h"
#include "estimator/prediction_shard.h"

namespace millrace {

inline constexpr int64_t kMaxPredictionParts = 99999;

struct PredictionJob {
  std::string checkpoint = "";
  PredictionFormat format = PredictionFormat::kJsonLines;
  int64_t num_parts = 1;
  // Of shuffles without seeds: all tasks must read rows in one order.
  uint64_t seed = 0;
  std::vector<std::string> files = {};  // that parts are made of; none: of elements
};

struct PredictedPart {
  std::string file = "";  // in the directory
  ShardContent content = {};
  std::string task = "";  // "worker 1", who predicted it
};

struct PredictionManifest {
  std::string checkpoint = "";
  PredictionFormat format = PredictionFormat::kJsonLines;
  std::vector<PredictedPart> parts = {};
  int64_t rows() const;
};

// nullopt: the directory has none: nothing, or not everything, was predicted.
StatusOr<std::optional<PredictionManifest>> ReadPredictionManifest(FileSystem* fs,
                                                                   const std::string& directory);

class PredictionFiles {
 public:
  PredictionFiles(FileSystem* fs, std::string directory);

  const std::string& directory() const { return directory_; }
  std::string job_directory() const;
  std::string manifest_path() const;

  // nullopt: no chief has begun.
  StatusOr<std::optional<PredictionJob>> ReadJob() const;
  Status WriteJob(const PredictionJob& job) const;

  // --- Of who predicts -----------------------------------------------------------------------

  struct Attempt {
    int64_t part = 0;
    std::string token;
    std::unique_ptr<PredictionShardWriter> writer;
  };
  StatusOr<Attempt> Begin(int64_t part, PredictionFormat format) const;
  // The attempt is whole.
  StatusOr<ShardContent> Commit(Attempt* attempt, absl::string_view task) const;
  void Abandon(Attempt* attempt) const;

  // --- Of the chief --------------------------------------------------------------------------

  // What there is of a part.
  struct PartState {
    std::vector<std::string> whole;           // tokens
    std::map<std::string, uint64_t> unended;  // tokens with the bytes so far: signs of life
  };
  StatusOr<std::map<int64_t, PartState>> Look() const;
  // Makes the one that is whole the part, or one of several; a chief before this one may have.
  StatusOr<PredictedPart> Choose(int64_t part, const PartState& state,
                                 const PredictionJob& job) const;
  // The predictions are whole: all parts in order.
  Status WriteManifest(const PredictionManifest& manifest) const;
  // Removes attempts, of everybody.
  void Sweep() const;

 private:
  std::string AttemptPath(int64_t part, absl::string_view token) const;

  FileSystem* const fs_;
  const std::string directory_;
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_PREDICTION_FILES_H_

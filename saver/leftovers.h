// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_LEFTOVERS_H_
#define MILLRACE_SAVER_LEFTOVERS_H_

// Leftovers: what interrupted saves and deletions leave next to checkpoints, found by its names and
// deleted once nobody can be at it any more.
//
// What an interrupted save or deletion of the same prefix left has no index. Somebody may just be
// writing it (a task that has not noticed the end of the program before this one): it is noted
// before the first save and deleted only when the second one finds it unchanged.
//
// Thread-safety: thread-compatible. Failure: what cannot be read or deleted stays.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "core/file_system.h"

namespace millrace {

// Between the name of a checkpoint and the digits of a sharded save's directory, in which its parts
// are until it is merged.
inline constexpr char kTempMark[] = "_temp_";
// How many digits these are, as TensorFlow has them.
inline constexpr size_t kTempDigits = 32;
// Digits of RandomHexName(), which ends the names of files that are not finished; as many of a
// run's id begin the random part of its directories.
inline constexpr size_t kHexDigits = 16;

bool IsHex(absl::string_view text, size_t digits);
// Removes "<mark><digits hexadecimal digits>" from the end; false where it does not end so.
bool ConsumeHexSuffix(absl::string_view* text, absl::string_view mark, size_t digits);

class Leftovers {
 public:
  // What is looked for: files of the checkpoints "<directory>/<base>-<step>".
  struct Family {
    std::string directory, base;
    std::string state_file;  // the state file's name
    std::string run_digits;  // the first kHexDigits of the run's id; "" for none
    bool deletes = true;     // also what others made (Saver::Save says what)
  };
  // Checkpoints that are none of it.
  using IsKept = absl::FunctionRef<bool(const std::string& checkpoint)>;

  // `fs` outlives this.
  explicit Leftovers(FileSystem* fs) : fs_(fs) {}

  // Before the first save: what there is. Forgets what was noted before.
  void Note(const Family& family, IsKept is_kept);
  // After the second one: of what was noted, that which is as it was then.
  void Delete(IsKept is_kept);
  // At once, for a run that is known to have ended: directories of parts and temporary files. Those
  // of a run with an id are for Delete.
  void Sweep(const Family& family);

 private:
  // What a name in a directory of checkpoints says: a file of a checkpoint `base`-<step> that is no
  // checkpoint without an index, or one that is not finished.
  enum class Part { kNone, kData, kMetaGraph, kLock, kUnfinishedFile, kUnfinishedDirectory };
  struct PartName {
    Part part = Part::kNone;
    std::string checkpoint;  // "m-12"
  };
  using State = std::pair<uint64_t, double>;  // size and time of the last change
  struct Leftover {
    std::string path;
    PartName name;
    State state;
  };

  static PartName Parse(absl::string_view name, const Family& family);
  // Of parts, made by a save of the same run.
  static bool IsOwnDirectory(absl::string_view name, const PartName& part, const Family& family);
  // Nothing when it is no such file (any more).
  std::optional<State> StateOf(const std::string& path, const PartName& name, IsKept is_kept);
  bool HoldsPartsOnly(const std::string& directory);

  FileSystem* const fs_;
  std::vector<Leftover> noted_;
};

}  // namespace millrace

#endif  // MILLRACE_SAVER_LEFTOVERS_H_

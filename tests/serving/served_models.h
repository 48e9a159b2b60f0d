// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SERVING_SERVED_MODELS_H_
#define MILLRACE_TESTS_SERVING_SERVED_MODELS_H_

// Models that the tests of this folder export and spoil.
//
//   ExportScaling   serving_default: x float [?,2], w string [?]  ->  y = x * scale [?,2], s = w
//   [?] ExportLooping   the same, and "loop": n int32 []  ->  steps int32 [], after n turns of a
//   loop ExportWords     serving_default: words string [?]  ->  ids int64 [?], by assets/words.txt
//
// The scale of a version tells which version answered, also over REST, where a reply does not say.
//
// Thread-safety: pure functions but for the files.
// Failure: as ExportModel (saver/export_model.h); of files, what the file system says.

#include <cstdint>
#include <functional>
#include <string>

#include "core/status.h"

namespace tensorflow {
class MetaGraphDef;
}  // namespace tensorflow

namespace millrace {

struct ScalingModel {
  float scale = 1;
  // Floats of another variable, which each step reads one of.
  int64_t ballast = 0;
  bool is_frozen = false;  // the ballast is a constant in the graph's file
  // What runs when it is loaded.
  enum class Init { kNone, kFails, kNan, kTakesLong, kHangs } init = Init::kNone;
};
Status ExportScaling(const std::string& directory, const ScalingModel& model = {});
Status ExportLooping(const std::string& directory, float scale = 1);
Status ExportWords(const std::string& directory);

// The files of `from`, in an order of no meaning, as `to`.
Status CopyModel(const std::string& from, const std::string& to);
// Reads saved_model.pb, changes its meta graph and writes it again, where it lies.
Status ChangeGraph(const std::string& directory,
                   const std::function<void(tensorflow::MetaGraphDef*)>& change);

}  // namespace millrace

#endif  // MILLRACE_TESTS_SERVING_SERVED_MODELS_H_

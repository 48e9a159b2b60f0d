// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_FRONT_FRONT_PATH_H_
#define MILLRACE_SERVING_FRONT_FRONT_PATH_H_

// What a request to the front asks for, by its method and path: those of the hosted service.
//
//   POST GET          /v1/projects/P/models
//        GET DELETE   /v1/projects/P/models/M
//   POST              /v1/projects/P/models/M:predict
//        GET          /v1/projects/P/models/M/metadata
//   POST GET          /v1/projects/P/models/M/versions
//        GET DELETE   /v1/projects/P/models/M/versions/V
//   POST              /v1/projects/P/models/M/versions/V:predict|setDefault
//        GET          /v1/projects/P/models/M/versions/V/metadata
//
// Metadata is TensorFlow Serving's, for clients that ask for signatures first.
//
// Without /projects/P it is the default project, as in commands that name no project. Names have
// no percent signs.
//
// Thread-safety: a pure function. Failure: InvalidArgument, `Malformed request: METHOD PATH`.

#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

struct FrontTarget {
  enum class Kind {
    kListModels,
    kCreateModel,
    kGetModel,
    kDeleteModel,
    kListVersions,
    kCreateVersion,
    kGetVersion,
    kDeleteVersion,
    kSetDefault,
    kPredict,   // `version` "": the default one
    kMetadata,  // the same
  };
  Kind kind = Kind::kListModels;
  std::string project, model, version;

  friend bool operator==(const FrontTarget&, const FrontTarget&) = default;
};

StatusOr<FrontTarget> ParseFrontPath(absl::string_view method, absl::string_view path,
                                     const std::string& default_project);

}  // namespace millrace

#endif  // MILLRACE_SERVING_FRONT_FRONT_PATH_H_

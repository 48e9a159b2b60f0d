// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_EXPORT_MARKER_H_
#define MILLRACE_SAVER_EXPORT_MARKER_H_

// The file that says that an exported model is complete: an empty one in the model's directory,
// written and synced after all the others. A server that finds it need not wait whether more files
// come (serving/version_source.h). Programs that copy models should copy it last; TensorFlow
// ignores it. Our exporter does not write it yet.

namespace millrace {

inline constexpr char kExportIsComplete[] = "export_is_complete";

}  // namespace millrace

#endif  // MILLRACE_SAVER_EXPORT_MARKER_H_

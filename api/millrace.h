// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_API_MILLRACE_H_
#define MILLRACE_API_MILLRACE_H_

// Millrace: everything that a program needs which builds models, trains, saves and uses them, in
// one process or on a cluster.
//
//   #include <millrace/millrace.h>
//
//   using namespace millrace;
//   Scope root;
//   Output x = Placeholder(root, DT_FLOAT, {-1});
//   ...
//
// No header of protobuf is in it: messages (GraphDef, ConfigProto) are declared and not defined. A
// program that reads or makes them includes their headers, <millrace/proto/graph.pb.h>, too.
// What else is public is in the folders' own headers, <millrace/graph/import_export.h>;
// api/README.md lists them.

#if __cplusplus < 201709L
#error "Millrace needs C++20: compile with -std=c++20 (CMake: cxx_std_20)"
#else

#include "core/clock.h"                              // IWYU pragma: export
#include "core/dtype.h"                              // IWYU pragma: export
#include "core/exit_code.h"                          // IWYU pragma: export
#include "core/file_system.h"                        // IWYU pragma: export
#include "core/logging.h"                            // IWYU pragma: export
#include "core/shape.h"                              // IWYU pragma: export
#include "core/status.h"                             // IWYU pragma: export
#include "core/tensor.h"                             // IWYU pragma: export
#include "core/version.h"                            // IWYU pragma: export
#include "data/decode_csv.h"                         // IWYU pragma: export
#include "data/decode_json_example.h"                // IWYU pragma: export
#include "data/decode_raw.h"                         // IWYU pragma: export
#include "data/parse_example.h"                      // IWYU pragma: export
#include "data/parse_features.h"                     // IWYU pragma: export
#include "data/parse_sequence_example.h"             // IWYU pragma: export
#include "distributed/cluster/cluster.h"             // IWYU pragma: export
#include "distributed/replica_device_setter.h"       // IWYU pragma: export
#include "distributed/server.h"                      // IWYU pragma: export
#include "graph/function_builder.h"                  // IWYU pragma: export
#include "graph/gradient.h"                          // IWYU pragma: export
#include "graph/node_builder.h"                      // IWYU pragma: export
#include "graph/scope.h"                             // IWYU pragma: export
#include "layers/layers.h"                           // IWYU pragma: export
#include "ops/ops.h"                                 // IWYU pragma: export
#include "runtime/op_library.h"                      // IWYU pragma: export
#include "runtime/session.h"                         // IWYU pragma: export
#include "saver/event_writer.h"                      // IWYU pragma: export
#include "saver/export_model.h"                      // IWYU pragma: export
#include "saver/loaded_model.h"                      // IWYU pragma: export
#include "saver/saved_model.h"                       // IWYU pragma: export
#include "saver/saver.h"                             // IWYU pragma: export
#include "train/hooks/hooks.h"                       // IWYU pragma: export
#include "train/hooks/monitored_training_session.h"  // IWYU pragma: export
#include "train/metrics.h"                           // IWYU pragma: export
#include "train/optimizers.h"                        // IWYU pragma: export
#include "train/progress.h"                          // IWYU pragma: export
#include "train/summaries.h"                         // IWYU pragma: export
#include "train/supervisor.h"                        // IWYU pragma: export
#include "train/train.h"                             // IWYU pragma: export

#endif  // C++20

#endif  // MILLRACE_API_MILLRACE_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_CROSSES_TASKS_H_
#define MILLRACE_LAYERS_CROSSES_TASKS_H_

// CrossesTasks: does what stands on a device cross a border of tasks on its way to a tensor? Then
// each byte costs time on the wire, and a layer may send less: a row for each different id instead
// of one for each id.

#include "absl/strings/string_view.h"
#include "graph/scope.h"

namespace millrace {

// `device`, of a variable: as it asks for it. `beside`: a tensor of the layer, which is valid. True
// when the device names a job or a task, and the tensor's asks for none or for another one: where
// nothing is asked for, a node stands with the program and not with a server of it. Placing may
// decide otherwise later, so values must not depend on the answer.
bool CrossesTasks(absl::string_view device, const Output& beside);

}  // namespace millrace

#endif  // MILLRACE_LAYERS_CROSSES_TASKS_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_MISSING_OP_HINT_H_
#define MILLRACE_GRAPH_MISSING_OP_HINT_H_

// What to do about an op kind that nobody has registered: the end of messages that name one.

#include <string>

namespace millrace {

class Node;  // graph/graph.h

inline constexpr char kMissingOpHint[] =
    "; the library that has it must be linked, or loaded before the graph (LoadOpLibrary; "
    "--op_library of the tools)";

// For messages about a node: what RegisteredSince says, else kMissingOpHint; nothing for a node
// whose op is known.
std::string MissingOpHint(const Node& node);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_MISSING_OP_HINT_H_

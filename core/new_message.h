// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_NEW_MESSAGE_H_
#define MILLRACE_CORE_NEW_MESSAGE_H_

// NewMessage: a protobuf message that an allocation which fails while it is filled leaves in a
// state that can be destroyed. Every message with maps (nodes, functions) that is made on the way
// from a GraphDef to the plans of a session in this process is made by it. (What travels between
// tasks, and RunMetadata's graphs, are messages of gRPC and of callers.)
//
//   const auto def = NewMessage<tensorflow::NodeDef>();
//   (*def->mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
//   graph->AddNode(*def);
//
// (protobuf's maps set their size before they allocate a table: after a std::bad_alloc their
// destructors walk what is not there.) The message is on a protobuf Arena of its own, where
// destructors of maps do nothing and all memory goes at once. Of protobuf 3.21 and libstdc++ this
// relies on
//   * maps and repeated fields on an arena needing no destructor, whatever state they are in;
//   * strings that could not be constructed needing none either: an arena notes the destructor
//     before it constructs one, and libstdc++ points a string to its own room before it allocates.
// new_message_test fails every allocation of a message in turn.
//
// Failure: std::bad_alloc. What is lost then: the key of a map that is longer than 15 characters,
// if the one allocation that fails is the block for the note of its destructor.
// Threads: as any message. Swapping and moving it with messages that are not of its arena copies.

#include <google/protobuf/arena.h>

#include <cstddef>
#include <memory>
#include <utility>

namespace millrace {

namespace new_message_internal {

// A small constant or a node with a few attrs, besides what the arena itself needs (110).
inline constexpr size_t kFirstBlockBytes = 1104;

template <typename Message>
struct Owner {
  alignas(std::max_align_t) char first_block[kFirstBlockBytes];
  google::protobuf::Arena arena{first_block, kFirstBlockBytes};
  Message* const message = google::protobuf::Arena::CreateMessage<Message>(&arena);
};

}  // namespace new_message_internal

template <typename Message>
std::shared_ptr<Message> NewMessage() {
#if defined(__SANITIZE_THREAD__)
  // protobuf's headers give an Arena other members under ThreadSanitizer than Debian's library has.
  return std::make_shared<Message>();
#endif
  auto owner = std::make_shared<new_message_internal::Owner<Message>>();
  Message* const message = owner->message;
  return std::shared_ptr<Message>(std::move(owner), message);
}

}  // namespace millrace

#endif  // MILLRACE_CORE_NEW_MESSAGE_H_

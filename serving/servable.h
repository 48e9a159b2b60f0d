// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_SERVABLE_H_
#define MILLRACE_SERVING_SERVABLE_H_

// Servable: one loaded version of a model, as its manager sees it: something that takes memory
// until it is destroyed.
//
// Thread-safety: num_bytes and note from any thread. The destructor runs once, after the last
// request; it may take long.

#include <cstdint>
#include <memory>
#include <utility>

namespace millrace {

// What somebody else keeps with a servable: it goes with it, on the thread that frees it.
class ServableNote {
 public:
  virtual ~ServableNote() = default;
};

class Servable {
 public:
  virtual ~Servable() = default;
  // About how much memory it takes.
  virtual int64_t num_bytes() const = 0;

  // By its loader, before anybody else has it.
  void set_note(std::unique_ptr<ServableNote> note) { note_ = std::move(note); }
  ServableNote* note() const { return note_.get(); }

 private:
  std::unique_ptr<ServableNote> note_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_SERVABLE_H_

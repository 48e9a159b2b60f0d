// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_TESTING_FRAME_TEXT_H_
#define MILLRACE_DISTRIBUTED_LINK_TESTING_FRAME_TEXT_H_

// Frames as text, to be compared by tests, and the bytes of frames.
//
// Thread-safety: pure functions. Failure: RawFrame and FrameBytes fail the test.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "distributed/link/frame.h"

namespace millrace {

// All that a frame says, on one line: "RUN step=7 number=1 ...". The bytes of tensors are hex.
std::string FrameText(const LinkFrame& frame);

// As FrameWriter writes it; of no CHUNK, whose bytes are not in the frame.
std::string FrameBytes(const LinkFrame& frame);

// A frame of whatever kind, head and payload.
std::string RawFrame(uint8_t kind, absl::string_view head, absl::string_view payload = "");

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_TESTING_FRAME_TEXT_H_

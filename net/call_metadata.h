// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_CALL_METADATA_H_
#define MILLRACE_NET_CALL_METADATA_H_

// What each call of ours says in its metadata, besides its request. Constants.

namespace millrace {

// Where the token is, and what precedes it.
inline constexpr char kTokenKey[] = "authorization";
inline constexpr char kTokenPrefix[] = "Bearer ";

// Of what tasks say to each other besides TensorFlow's messages. A server refuses calls of another
// version, naming both; calls that say none are of other programs (TensorFlow's), and served.
inline constexpr int kWireVersion = 3;
inline constexpr char kWireVersionKey[] = "millrace-wire-version";

}  // namespace millrace

#endif  // MILLRACE_NET_CALL_METADATA_H_

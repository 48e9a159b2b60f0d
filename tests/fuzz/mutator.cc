// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <utility>

namespace millrace {
namespace {

// No input grows beyond it: mutations of mutations would.
constexpr size_t kMaxBytes = 64 << 10;

// What lengths, counts and numbers break at, as varints and as text.
const std::vector<std::string>& Extremes() {
  static const std::vector<std::string>* const extremes = new std::vector<std::string>{
      std::string(1, '\0'),
      "\x7f",
      "\xff\x7f",
      "\xff\xff\xff\xff\x07",                      // 2^31 - 1
      "\xff\xff\xff\xff\x0f",                      // 2^32 - 1
      "\x80\x80\x80\x80\x10",                      // 2^32
      "\xff\xff\xff\xff\xff\xff\xff\xff\x7f",      // 2^63 - 1
      "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  // -1
      "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",  // no varint
      "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80",
      "\xed\xa0\x80",  // no UTF-8
      "-1",
      "1e999",
      "99999999999999999999",
      "[[[[[[[[[[[[[[[[",
      "{\"a\":{\"a\":{\"a\":",
      "\"\\ud800\"",
      "null",
  };
  return *extremes;
}

}  // namespace

Mutator::Mutator(uint64_t seed, std::vector<std::string> corpus)
    : random_(seed), corpus_(std::move(corpus)) {}

std::string Mutator::Next() {
  std::string bytes = corpus_[Below(corpus_.size())];
  const uint64_t changes = 1 + Below(8);
  for (uint64_t i = 0; i < changes; ++i) Change(&bytes);
  if (bytes.size() > kMaxBytes) bytes.resize(kMaxBytes);
  return bytes;
}

void Mutator::Change(std::string* bytes) {
  const size_t size = bytes->size();
  const size_t at = Below(size + 1);
  const size_t length = std::min<size_t>(Below(16) + 1, size - at);
  switch (Below(8)) {
    case 0:
      if (at < size) (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << Below(8)));
      return;
    case 1:
      if (at < size) (*bytes)[at] = static_cast<char>(Below(256));
      return;
    case 2:
      bytes->erase(at, length);
      return;
    case 3:
      bytes->resize(at);
      return;
    case 4:  // again, up to 64 times
      if (length > 0) {
        const std::string part = bytes->substr(at, length);
        std::string many;
        for (uint64_t n = Below(64); n > 0; --n) many += part;
        bytes->insert(at, many);
      }
      return;
    case 5:
      bytes->insert(at, Extremes()[Below(Extremes().size())]);
      return;
    case 6:
      bytes->replace(at, length, Extremes()[Below(Extremes().size())]);
      return;
    default: {
      const std::string& other = corpus_[Below(corpus_.size())];
      const size_t begin = Below(other.size() + 1);
      bytes->replace(at, length, other.substr(begin, Below(other.size() - begin + 1)));
    }
  }
}

}  // namespace millrace

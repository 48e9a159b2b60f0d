// SPDX-License-Identifier: Apache-2.0
#include "net/http/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace millrace {
namespace {

constexpr int kGzipOnly = 16 + MAX_WBITS;  // zlib's way to ask for gzip's header and trailer
constexpr size_t kLargestStep = std::numeric_limits<uInt>::max();
// So many bytes come out between two looks at the ratio.
constexpr size_t kStep = size_t{256} << 10;

Bytef* ZlibBytes(const char* bytes) {
  return reinterpret_cast<Bytef*>(const_cast<char*>(bytes));  // zlib does not write to next_in
}

struct Inflater {
  ~Inflater() {
    if (open) inflateEnd(&stream);
  }
  z_stream stream = {};
  bool open = false;
};

struct Deflater {
  ~Deflater() {
    if (open) deflateEnd(&stream);
  }
  z_stream stream = {};
  bool open = false;
};

Status NoMemory(size_t size) {
  return absl::ResourceExhaustedError(
      absl::StrCat("gzip: there must be memory for the inflated bytes, got none after ", size));
}

}  // namespace

StatusOr<GrowingBytes> Gunzip(absl::string_view compressed, const GunzipLimits& limits,
                              std::shared_ptr<ByteBudget> budget) {
  GrowingBytes out(std::move(budget));
  Inflater inflater;
  z_stream& z = inflater.stream;
  if (inflateInit2(&z, kGzipOnly) != Z_OK) return NoMemory(0);
  inflater.open = true;

  const size_t most = static_cast<size_t>(std::max<int64_t>(limits.max_bytes, 0));
  size_t read = 0;
  while (true) {
    const size_t available = std::min(compressed.size() - read, kLargestStep);
    // One byte beyond the limit tells a body that is too large from one that just fits.
    const size_t room = std::min(kStep, most + 1 - out.size());
    if (!out.MakeRoom(1, most + 1)) return NoMemory(out.size());
    z.next_in = ZlibBytes(compressed.data() + read);
    z.avail_in = static_cast<uInt>(available);
    z.next_out = reinterpret_cast<Bytef*>(out.end());
    z.avail_out = static_cast<uInt>(std::min(room, out.free_room()));
    const size_t asked = z.avail_out;
    const int result = inflate(&z, Z_NO_FLUSH);
    read += available - z.avail_in;
    const size_t written = asked - z.avail_out;
    out.Advance(written);

    if (result == Z_MEM_ERROR) return NoMemory(out.size());
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      return InvalidArgument("gzip: the bytes must be gzip with right checksums, got at byte ",
                             read, " of ", compressed.size(), ": ",
                             z.msg == nullptr ? "another format" : z.msg);
    }
    if (out.size() > most) {
      return OutOfRange("gzip: the inflated bytes must be at most ", most, ", got more");
    }
    const int64_t size = static_cast<int64_t>(out.size());
    if (size > GunzipLimits::kFreeBytes &&
        size / std::max<int64_t>(limits.max_ratio, 1) > static_cast<int64_t>(read)) {
      return OutOfRange("gzip: the bytes must inflate to at most ", limits.max_ratio,
                        " times their size, got ", size, " from ", read);
    }
    if (result == Z_STREAM_END) {
      if (read == compressed.size()) return out;
      if (inflateReset(&z) != Z_OK) return Internal("gzip: a stream must be ready for a member");
      continue;  // another member, or garbage: its header says which
    }
    if (read == compressed.size() && written < asked) {
      return InvalidArgument("gzip: the bytes must end with a whole member, got ",
                             compressed.size(), " that break off");
    }
  }
}

StatusOr<std::string> Gzip(absl::string_view bytes) {
  Deflater deflater;
  z_stream& z = deflater.stream;
  constexpr int kMemoryLevel = 8;  // zlib's default
  if (deflateInit2(&z, Z_BEST_SPEED, Z_DEFLATED, kGzipOnly, kMemoryLevel, Z_DEFAULT_STRATEGY) !=
      Z_OK) {
    return absl::ResourceExhaustedError("gzip: there must be memory to deflate, got none");
  }
  deflater.open = true;
  std::string out;
  out.resize(static_cast<size_t>(deflateBound(&z, static_cast<uLong>(bytes.size()))));
  size_t read = 0, size = 0;
  while (true) {
    const size_t available = std::min(bytes.size() - read, kLargestStep);
    if (size == out.size()) out.resize(out.size() + kStep);  // the bound did not hold
    const size_t room = std::min(out.size() - size, kLargestStep);
    z.next_in = ZlibBytes(bytes.data() + read);
    z.avail_in = static_cast<uInt>(available);
    z.next_out = reinterpret_cast<Bytef*>(out.data() + size);
    z.avail_out = static_cast<uInt>(room);
    const bool last = read + available == bytes.size();
    const int result = deflate(&z, last ? Z_FINISH : Z_NO_FLUSH);
    read += available - z.avail_in;
    size += room - z.avail_out;
    if (result == Z_STREAM_END) break;
    if (result != Z_OK && result != Z_BUF_ERROR) {
      return Internal("gzip: deflate must go on, got zlib's error ", result);
    }
  }
  out.resize(size);
  return out;
}

bool AcceptsGzip(absl::string_view accept_encoding) {
  bool any = false;
  for (absl::string_view coding : absl::StrSplit(accept_encoding, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(coding, absl::MaxSplits(';', 1));
    const absl::string_view name = absl::StripAsciiWhitespace(parts.first);
    absl::string_view weight = absl::StripAsciiWhitespace(parts.second);
    bool wanted = true;
    if (absl::StartsWithIgnoreCase(weight, "q=")) {
      weight.remove_prefix(2);
      double q = 0;
      wanted = absl::SimpleAtod(weight, &q) && q > 0;
    }
    // What is said of gzip itself counts more than what is said of all.
    if (absl::EqualsIgnoreCase(name, "gzip") || absl::EqualsIgnoreCase(name, "x-gzip")) {
      return wanted;
    }
    if (name == "*") any = wanted;
  }
  return any;
}

}  // namespace millrace

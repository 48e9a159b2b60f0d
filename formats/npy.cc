// SPDX-License-Identifier: Apache-2.0
#include "formats/npy.h"

#include <zip.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/resource_handle.h"
#include "core/utf8.h"

namespace millrace {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
// numpy itself writes headers of a few hundred bytes; v2 could declare 4 GiB.
constexpr size_t kMaxHeaderBytes = size_t{1} << 20;
// No deflate stream expands more than this.
constexpr uint64_t kDeflateExpansion = 1032;
// More entries than any array file has.
constexpr zip_int64_t kMaxEntries = 1 << 20;

struct Header {
  std::string descr;
  bool fortran_order = false;
  Shape shape;
};

// Reads the header: a Python dictionary of a string, a Boolean and a tuple of integers.
class HeaderParser {
 public:
  explicit HeaderParser(absl::string_view text) : rest_(text) {}

  StatusOr<Header> Parse() {
    Header header;
    bool descr = false, order = false, shape = false;
    if (!Take('{')) return Error("'{'");
    while (!Take('}')) {
      const std::optional<std::string> key = String();
      if (!key || !Take(':')) return Error("a key in quotes and ':'");
      if (*key == "descr") {
        Skip();
        if (!rest_.empty() && rest_.front() == '[') {
          return absl::InvalidArgumentError(
              "npy: element type must be a number, Boolean or string, got a structure");
        }
        const std::optional<std::string> value = String();
        if (!value) return Error("a string after 'descr'");
        header.descr = *value;
        descr = true;
      } else if (*key == "fortran_order") {
        Skip();
        if (absl::ConsumePrefix(&rest_, "True")) {
          header.fortran_order = true;
        } else if (!absl::ConsumePrefix(&rest_, "False")) {
          return Error("True or False after 'fortran_order'");
        }
        order = true;
      } else if (*key == "shape") {
        MR_ASSIGN_OR_RETURN(header.shape, Tuple());
        shape = true;
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat("npy: header has keys 'descr', 'fortran_order' and 'shape', got '",
                         absl::CEscape(*key), "'"));
      }
      if (!Take(',') && Peek() != '}') return Error("',' or '}'");
    }
    Skip();
    if (!rest_.empty()) return Error("the end of the header");
    if (!descr || !order || !shape) {
      return absl::InvalidArgumentError(
          "npy: header must have 'descr', 'fortran_order' and 'shape'");
    }
    return header;
  }

 private:
  void Skip() {
    while (!rest_.empty() && std::isspace(static_cast<unsigned char>(rest_.front()))) {
      rest_.remove_prefix(1);
    }
  }
  char Peek() {
    Skip();
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool Take(char c) {
    if (rest_.empty() || Peek() != c || rest_.empty()) return false;
    rest_.remove_prefix(1);
    return true;
  }
  std::optional<std::string> String() {
    const char quote = Peek();
    if (quote != '\'' && quote != '"') return std::nullopt;
    const size_t end = rest_.find(quote, 1);
    if (end == absl::string_view::npos) return std::nullopt;
    std::string value(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return value;
  }
  StatusOr<Shape> Tuple() {
    std::vector<int64_t> dims;
    if (!Take('(')) return Error("'(' after 'shape'");
    while (!Take(')')) {
      Skip();
      size_t n = 0;
      while (n < rest_.size() && std::isdigit(static_cast<unsigned char>(rest_[n]))) ++n;
      int64_t dim = 0;
      if (n == 0 || !absl::SimpleAtoi(rest_.substr(0, n), &dim)) return Error("a dimension");
      rest_.remove_prefix(n);
      // Python 2 wrote long integers with an L.
      if (!rest_.empty() && rest_.front() == 'L') rest_.remove_prefix(1);
      dims.push_back(dim);
      if (!Take(',') && Peek() != ')') return Error("',' or ')'");
    }
    StatusOr<Shape> shape = Shape::Make(dims);
    if (!shape.ok()) return Prefixed("npy", shape.status());
    return shape;
  }
  Status Error(absl::string_view expected) const {
    return absl::InvalidArgumentError(absl::StrCat("npy: header must have ", expected, ", got '",
                                                   absl::CEscape(rest_.substr(0, 20)), "'"));
  }

  absl::string_view rest_;
};

struct ElementType {
  DType dtype = DT_INVALID;
  char kind = 'i';
  size_t size = 0;  // bytes of an element in the file
  size_t swap = 1;  // bytes that are in one order: half an element for complex numbers
  bool big_endian = false;
};

StatusOr<ElementType> ParseDescr(const std::string& descr) {
  const auto refused = [&descr]() {
    return absl::InvalidArgumentError(
        absl::StrCat("npy: element type must be bool, int8 to int64, uint8 to uint64, float16 to "
                     "float64, complex64, complex128, S or U, got '",
                     absl::CEscape(descr), "'"));
  };
  absl::string_view text = descr;
  ElementType type;
  if (!text.empty() && absl::string_view("<>|=").find(text[0]) != absl::string_view::npos) {
    type.big_endian = text[0] == '>';
    text.remove_prefix(1);
  }
  if (text.empty()) return refused();
  type.kind = text[0];
  text.remove_prefix(1);
  if (type.kind == 'O') {
    return absl::InvalidArgumentError(
        "npy: element type must not be a Python object (a pickle, which could run code), got '|O'; "
        "save strings as numpy 'S' or 'U'");
  }
  uint64_t size = 0;
  if (text.empty() ||
      !std::all_of(text.begin(), text.end(),
                   [](char c) { return std::isdigit(static_cast<unsigned char>(c)); }) ||
      !absl::SimpleAtoi(text, &size) || size > (uint64_t{1} << 40)) {
    return refused();
  }
  type.size = static_cast<size_t>(size);
  type.swap = type.size;
  switch (type.kind) {
    case 'b':
      if (size == 1) type.dtype = DT_BOOL;
      break;
    case 'i':
      type.dtype = size == 1   ? DT_INT8
                   : size == 2 ? DT_INT16
                   : size == 4 ? DT_INT32
                   : size == 8 ? DT_INT64
                               : DT_INVALID;
      break;
    case 'u':
      type.dtype = size == 1   ? DT_UINT8
                   : size == 2 ? DT_UINT16
                   : size == 4 ? DT_UINT32
                   : size == 8 ? DT_UINT64
                               : DT_INVALID;
      break;
    case 'f':
      type.dtype = size == 2 ? DT_HALF : size == 4 ? DT_FLOAT : size == 8 ? DT_DOUBLE : DT_INVALID;
      break;
    case 'c':
      type.dtype = size == 8 ? DT_COMPLEX64 : size == 16 ? DT_COMPLEX128 : DT_INVALID;
      type.swap = type.size / 2;
      break;
    case 'S':
    case 'a':
      type.dtype = DT_STRING;
      type.kind = 'S';
      break;
    case 'U':
      type.dtype = DT_STRING;
      type.size *= 4;  // code points
      break;
    default:
      break;
  }
  if (type.dtype == DT_INVALID) return refused();
  return type;
}

Status AppendCodePoint(uint32_t code, std::string* out) {
  if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
    return absl::InvalidArgumentError(
        absl::StrCat("npy: a text element must hold Unicode code points, got ", code));
  }
  AppendUtf8(code, out);
  return absl::OkStatus();
}

Status ParseString(const ElementType& type, absl::string_view bytes, std::string* out) {
  if (type.kind == 'S') {
    const size_t last = bytes.find_last_not_of('\0');
    *out = std::string(bytes.substr(0, last == absl::string_view::npos ? 0 : last + 1));
    return absl::OkStatus();
  }
  std::vector<uint32_t> codes;
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    uint32_t code = 0;
    for (size_t b = 0; b < 4; ++b) {
      const size_t shift = 8 * (type.big_endian ? 3 - b : b);
      code |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i + b])) << shift;
    }
    codes.push_back(code);
  }
  while (!codes.empty() && codes.back() == 0) codes.pop_back();
  for (uint32_t code : codes) MR_RETURN_IF_ERROR(AppendCodePoint(code, out));
  return absl::OkStatus();
}

// Calls f(position in C order, position in the file) for each element of a Fortran-ordered array.
template <typename F>
Status ForEachFortran(const Shape& shape, F f) {
  const size_t rank = static_cast<size_t>(shape.rank());
  std::vector<int64_t> index(rank, 0), strides(rank, 1);
  for (size_t i = 1; i < rank; ++i) {
    strides[i] = strides[i - 1] * shape.dim(static_cast<int>(i - 1));
  }
  int64_t source = 0;
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    MR_RETURN_IF_ERROR(f(static_cast<size_t>(i), static_cast<size_t>(source)));
    for (size_t axis = rank; axis-- > 0;) {
      source += strides[axis];
      if (++index[axis] < shape.dim(static_cast<int>(axis))) break;
      source -= strides[axis] * index[axis];
      index[axis] = 0;
    }
  }
  return absl::OkStatus();
}

template <typename F>
Status ForEachElement(const Header& header, F f) {
  if (header.fortran_order && header.shape.rank() > 1) return ForEachFortran(header.shape, f);
  for (size_t i = 0; i < static_cast<size_t>(header.shape.num_elements()); ++i) {
    MR_RETURN_IF_ERROR(f(i, i));
  }
  return absl::OkStatus();
}

// The length of magic, version and header, and the header's text, from the file's first bytes.
StatusOr<absl::string_view> HeaderText(absl::string_view bytes, size_t* data_offset) {
  if (!absl::StartsWith(bytes, kMagic)) {
    return absl::InvalidArgumentError(absl::StrCat("npy: file must begin with \\x93NUMPY, got '",
                                                   absl::CHexEscape(bytes.substr(0, kMagic.size())),
                                                   "'"));
  }
  if (bytes.size() < 10) {
    return absl::DataLossError(
        absl::StrCat("npy: file ends inside its header, got ", bytes.size(), " bytes"));
  }
  const unsigned version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3 || bytes[7] != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("npy: format version must be 1.0, 2.0 or 3.0, got ", version, ".",
                     static_cast<unsigned char>(bytes[7])));
  }
  const size_t width = version == 1 ? 2 : 4;
  if (bytes.size() < 8 + width) {
    return absl::DataLossError(
        absl::StrCat("npy: file ends inside its header, got ", bytes.size(), " bytes"));
  }
  size_t length = 0;
  for (size_t i = 0; i < width; ++i) {
    length |= static_cast<size_t>(static_cast<unsigned char>(bytes[8 + i])) << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("npy: header must have at most ", kMaxHeaderBytes, " bytes, got ", length));
  }
  *data_offset = 8 + width + length;
  if (bytes.size() < *data_offset) {
    return absl::DataLossError(absl::StrCat("npy: file ends inside its header of ", length,
                                            " bytes, got ", bytes.size(), " bytes in all"));
  }
  return bytes.substr(8 + width, length);
}

// The bytes that the elements take, checked for overflow.
StatusOr<uint64_t> DataBytes(const Header& header, const ElementType& type) {
  const uint64_t elements = static_cast<uint64_t>(header.shape.num_elements());
  if (type.size != 0 && elements > std::numeric_limits<uint64_t>::max() / type.size) {
    return absl::InvalidArgumentError(absl::StrCat("npy: array of shape ", header.shape.ToString(),
                                                   " and ", type.size,
                                                   " bytes per element is too large"));
  }
  return elements * type.size;
}

std::string DescrOf(DType dtype) {
  switch (dtype) {
    case DT_BOOL:
      return "|b1";
    case DT_INT8:
    case DT_QINT8:
      return "|i1";
    case DT_UINT8:
    case DT_QUINT8:
      return "|u1";
    case DT_INT16:
    case DT_QINT16:
      return "<i2";
    case DT_UINT16:
    case DT_QUINT16:
      return "<u2";
    case DT_INT32:
    case DT_QINT32:
      return "<i4";
    case DT_UINT32:
      return "<u4";
    case DT_INT64:
      return "<i8";
    case DT_UINT64:
      return "<u8";
    case DT_HALF:
      return "<f2";
    case DT_FLOAT:
    case DT_BFLOAT16:
      return "<f4";
    case DT_DOUBLE:
      return "<f8";
    case DT_COMPLEX64:
      return "<c8";
    case DT_COMPLEX128:
      return "<c16";
    default:
      return "";
  }
}

// libzip's objects and errors as ours.

struct ZipCloser {
  void operator()(zip_t* zip) const { zip_discard(zip); }
};
struct ZipFileCloser {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};
struct ZipSourceFreer {
  void operator()(zip_source_t* source) const { zip_source_free(source); }
};
using ZipPtr = std::unique_ptr<zip_t, ZipCloser>;
using ZipFilePtr = std::unique_ptr<zip_file_t, ZipFileCloser>;
using ZipSourcePtr = std::unique_ptr<zip_source_t, ZipSourceFreer>;

class ZipError {
 public:
  ZipError() { zip_error_init(&error_); }
  ~ZipError() { zip_error_fini(&error_); }
  ZipError(const ZipError&) = delete;
  ZipError& operator=(const ZipError&) = delete;
  zip_error_t* get() { return &error_; }
  std::string text() { return zip_error_strerror(&error_); }

 private:
  zip_error_t error_;
};

StatusOr<std::string> ReadEntry(zip_t* zip, zip_uint64_t index, const zip_stat_t& stat) {
  const auto damaged = [](absl::string_view reason) {
    return absl::DataLossError(absl::StrCat("npz: entry must be intact, got: ", reason));
  };
  if ((stat.valid & ZIP_STAT_SIZE) == 0 || (stat.valid & ZIP_STAT_COMP_SIZE) == 0) {
    return damaged("no size");
  }
  if (stat.size / kDeflateExpansion > stat.comp_size + 1) {
    return damaged(absl::StrCat(stat.comp_size, " bytes that claim to expand to ", stat.size));
  }
  const ZipFilePtr file(zip_fopen_index(zip, index, 0));
  if (file == nullptr) return damaged(zip_strerror(zip));
  std::string bytes;
  bytes.resize(stat.size);
  size_t done = 0;
  while (done < bytes.size()) {
    const zip_int64_t n = zip_fread(file.get(), bytes.data() + done, bytes.size() - done);
    if (n <= 0) {
      return damaged(n < 0 ? zip_file_strerror(file.get())
                           : absl::StrCat("end after ", done, " of ", bytes.size(), " bytes"));
    }
    done += static_cast<size_t>(n);
  }
  // The checksum is compared at the end of the data.
  char rest;
  if (zip_fread(file.get(), &rest, 1) != 0) return damaged(zip_file_strerror(file.get()));
  return bytes;
}

StatusOr<NamedArrays> ParseNpz(const std::string& bytes) {
  // libzip takes an empty file for an empty archive.
  if (bytes.empty()) {
    return absl::InvalidArgumentError("npz: file must be a zip archive, got 0 bytes");
  }
  ZipError error;
  zip_source_t* source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, error.get());
  if (source == nullptr) return absl::InternalError(absl::StrCat("npz: ", error.text()));
  // The archive takes the source over when it opens.
  const ZipPtr zip(zip_open_from_source(source, ZIP_RDONLY, error.get()));
  if (zip == nullptr) {
    zip_source_free(source);
    return absl::InvalidArgumentError(
        absl::StrCat("npz: file must be a zip archive, got: ", error.text()));
  }
  const zip_int64_t count = zip_get_num_entries(zip.get(), 0);
  if (count < 0 || count > kMaxEntries) {
    return absl::InvalidArgumentError(
        absl::StrCat("npz: archive must have at most ", kMaxEntries, " entries, got ", count));
  }
  NamedArrays arrays;
  std::set<std::string> names;
  for (zip_uint64_t i = 0; i < static_cast<zip_uint64_t>(count); ++i) {
    zip_stat_t stat;
    zip_stat_init(&stat);
    if (zip_stat_index(zip.get(), i, 0, &stat) != 0 || (stat.valid & ZIP_STAT_NAME) == 0) {
      return absl::DataLossError(absl::StrCat("npz: entry ", i, " must have a name and a size"));
    }
    absl::string_view name = stat.name;
    absl::ConsumeSuffix(&name, ".npy");
    const std::string where = absl::StrCat("array '", absl::CEscape(name), "'");
    if (!names.insert(std::string(name)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("npz: ", where, " must be there once, got two"));
    }
    StatusOr<std::string> entry = ReadEntry(zip.get(), i, stat);
    if (!entry.ok()) return Prefixed(where, entry.status());
    StatusOr<Tensor> tensor = ParseNpy(*entry);
    if (!tensor.ok()) return Prefixed(where, tensor.status());
    arrays.emplace_back(name, *std::move(tensor));
  }
  return arrays;
}

// An end of a zip archive's directory, and nothing before it.
constexpr char kEmptyArchive[22] = {'P', 'K', 5, 6};

StatusOr<std::string> FormatNpz(const NamedArrays& arrays, NpzCompression compression) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : arrays) {
    if (!names.insert(name).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("npz: array names must differ, got '", name, "' twice"));
    }
  }
  ZipError error;
  const ZipSourcePtr archive(zip_source_buffer_create(nullptr, 0, 0, error.get()));
  if (archive == nullptr) return absl::InternalError(absl::StrCat("npz: ", error.text()));
  zip_source_keep(archive.get());  // once for the archive, once for us
  ZipPtr zip(zip_open_from_source(archive.get(), ZIP_CREATE | ZIP_TRUNCATE, error.get()));
  if (zip == nullptr) {
    zip_source_free(archive.get());
    return absl::InternalError(absl::StrCat("npz: ", error.text()));
  }
  const auto failed = [&zip]() {
    return absl::InternalError(
        absl::StrCat("npz: archive cannot be made: ", zip_strerror(zip.get())));
  };
  // The archive reads them when it is closed.
  std::vector<std::string> files;
  files.reserve(arrays.size());
  for (const auto& [name, tensor] : arrays) {
    MR_ASSIGN_OR_RETURN(std::string file, FormatNpy(tensor, absl::StrCat("'", name, "'")));
    files.push_back(std::move(file));
    zip_source_t* source =
        zip_source_buffer(zip.get(), files.back().data(), files.back().size(), 0);
    if (source == nullptr) return failed();
    const zip_int64_t index =
        zip_file_add(zip.get(), (name + ".npy").c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      zip_source_free(source);
      return failed();
    }
    const zip_int32_t method =
        compression == NpzCompression::kStored ? ZIP_CM_STORE : ZIP_CM_DEFLATE;
    // 1980-01-01, as numpy writes: the same arrays give the same bytes.
    if (zip_set_file_compression(zip.get(), static_cast<zip_uint64_t>(index), method, 0) != 0 ||
        zip_file_set_dostime(zip.get(), static_cast<zip_uint64_t>(index), 0, 33, 0) != 0) {
      return failed();
    }
  }
  if (zip_close(zip.get()) != 0) return failed();
  zip.release();  // NOLINT: closing has freed it.
  // libzip writes no archive without entries; numpy does.
  if (arrays.empty()) return std::string(kEmptyArchive, sizeof(kEmptyArchive));
  zip_stat_t stat;
  zip_stat_init(&stat);
  if (zip_source_stat(archive.get(), &stat) != 0 || (stat.valid & ZIP_STAT_SIZE) == 0 ||
      zip_source_open(archive.get()) != 0) {
    return absl::InternalError("npz: archive cannot be read back");
  }
  std::string bytes(stat.size, '\0');
  const zip_int64_t n = zip_source_read(archive.get(), bytes.data(), bytes.size());
  zip_source_close(archive.get());
  if (n != static_cast<zip_int64_t>(bytes.size())) {
    return absl::InternalError("npz: archive cannot be read back");
  }
  return bytes;
}

}  // namespace

StatusOr<Tensor> ParseNpy(absl::string_view bytes) {
  size_t offset = 0;
  MR_ASSIGN_OR_RETURN(const absl::string_view text, HeaderText(bytes, &offset));
  const StatusOr<Header> header = HeaderParser(text).Parse();
  if (!header.ok()) return header.status();
  MR_ASSIGN_OR_RETURN(const ElementType type, ParseDescr(header->descr));
  MR_ASSIGN_OR_RETURN(const uint64_t expected, DataBytes(*header, type));
  const absl::string_view data = bytes.substr(offset);
  if (data.size() < expected) {
    return absl::DataLossError(absl::StrCat("npy: array '", header->descr, "' of shape ",
                                            header->shape.ToString(), " needs ", expected,
                                            " bytes of data, got ", data.size()));
  }
  // A string of no bytes costs nothing in the file, but an object here.
  if (type.dtype == DT_STRING &&
      static_cast<uint64_t>(header->shape.num_elements()) > data.size() &&
      header->shape.num_elements() > (int64_t{1} << 20)) {
    return absl::InvalidArgumentError(absl::StrCat("npy: array '", header->descr, "' of shape ",
                                                   header->shape.ToString(),
                                                   " must have data, got ", data.size(), " bytes"));
  }
  MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(type.dtype, header->shape));
  if (type.dtype == DT_STRING) {
    const absl::Span<std::string> out = tensor.mutable_raw<std::string>();
    MR_RETURN_IF_ERROR(ForEachElement(*header, [&](size_t to, size_t from) {
      return ParseString(type, data.substr(from * type.size, type.size), &out[to]);
    }));
    return tensor;
  }
  char* out = tensor.mutable_bytes().data();
  const bool in_order = !header->fortran_order || header->shape.rank() <= 1;
  if (in_order && expected > 0 && (!type.big_endian || type.swap == 1)) {
    std::memcpy(out, data.data(), expected);
  } else {
    MR_RETURN_IF_ERROR(ForEachElement(*header, [&](size_t to, size_t from) {
      char* target = out + to * type.size;
      std::memcpy(target, data.data() + from * type.size, type.size);
      if (type.big_endian) {
        for (size_t i = 0; i < type.size; i += type.swap) {
          std::reverse(target + i, target + i + type.swap);
        }
      }
      return absl::OkStatus();
    }));
  }
  if (type.dtype == DT_BOOL) {
    // Any other byte is no value of a C++ bool.
    for (uint64_t i = 0; i < expected; ++i) out[i] = out[i] != 0;
  }
  return tensor;
}

StatusOr<std::string> FormatNpy(const Tensor& tensor, absl::string_view what) {
  std::string descr = DescrOf(tensor.dtype());
  size_t longest = 1;  // numpy has no strings of no bytes
  if (tensor.dtype() == DT_STRING) {
    for (const std::string& s : tensor.raw<std::string>()) longest = std::max(longest, s.size());
    descr = absl::StrCat("|S", longest);
  }
  if (descr.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("npy: ", what, " must be of a type that numpy has, got ",
                     tensor.has_value() ? DTypeName(tensor.dtype()) : std::string("no value")));
  }
  std::string header = absl::StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (",
                                    absl::StrJoin(tensor.shape().dims(), ", "),
                                    tensor.rank() == 1 ? ",), }" : "), }");
  // Data begin at a multiple of 64.
  const size_t total = (kMagic.size() + 4 + header.size() + 1 + 63) / 64 * 64;
  header.append(total - kMagic.size() - 4 - header.size() - 1, ' ');
  header += '\n';
  std::string bytes(kMagic);
  bytes += '\x01';
  bytes += '\0';
  // At most Shape::kMaxRank dimensions of 14 characters: fits the 16 bits of version 1.
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  if (tensor.dtype() == DT_STRING) {
    const size_t count = static_cast<size_t>(tensor.num_elements());
    if (count > 0 && longest > bytes.max_size() / 2 / count) {
      return absl::ResourceExhaustedError(
          absl::StrCat("npy: ", what, " of ", count, " strings of up to ", longest,
                       " bytes is too large for numpy's fixed width"));
    }
    bytes.reserve(bytes.size() + count * longest);
    for (const std::string& s : tensor.raw<std::string>()) {
      bytes += s;
      bytes.append(longest - s.size(), '\0');
    }
  } else if (tensor.dtype() == DT_BFLOAT16) {
    for (Bfloat16 v : tensor.raw<Bfloat16>()) {
      const float f = ToFloat(v);
      char raw[sizeof(f)];
      std::memcpy(raw, &f, sizeof(f));
      bytes.append(raw, sizeof(f));
    }
  } else if (tensor.num_elements() > 0) {
    const absl::Span<const char> data = tensor.bytes();
    bytes.append(data.data(), data.size());
  }
  return bytes;
}

StatusOr<Tensor> ReadNpy(FileSystem* fs, const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(fs, path, uint64_t{1} << 36));
  StatusOr<Tensor> tensor = ParseNpy(bytes);
  if (!tensor.ok()) return Prefixed(path, tensor.status());
  return tensor;
}

Status WriteNpy(FileSystem* fs, const std::string& path, const Tensor& tensor) {
  StatusOr<std::string> bytes = FormatNpy(tensor);
  if (!bytes.ok()) return Prefixed(path, bytes.status());
  return WriteFileAtomically(fs, path, *bytes);
}

StatusOr<NamedArrays> ReadNpz(FileSystem* fs, const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(fs, path, uint64_t{1} << 36));
  StatusOr<NamedArrays> arrays = ParseNpz(bytes);
  if (!arrays.ok()) return Prefixed(path, arrays.status());
  return arrays;
}

Status WriteNpz(FileSystem* fs, const std::string& path, const NamedArrays& arrays,
                NpzCompression compression) {
  StatusOr<std::string> bytes = FormatNpz(arrays, compression);
  if (!bytes.ok()) return Prefixed(path, bytes.status());
  return WriteFileAtomically(fs, path, *bytes);
}

StatusOr<Tensor> LengthsOf(const Tensor& strings) {
  if (strings.dtype() != DT_STRING) {
    return absl::InvalidArgumentError(
        absl::StrCat("npy: lengths are of strings, got ", DTypeName(strings.dtype())));
  }
  MR_ASSIGN_OR_RETURN(Tensor lengths, Tensor::Allocate(DT_INT64, strings.shape()));
  const absl::Span<const std::string> from = strings.raw<std::string>();
  const absl::Span<int64_t> to = lengths.mutable_raw<int64_t>();
  for (size_t i = 0; i < from.size(); ++i) to[i] = static_cast<int64_t>(from[i].size());
  return lengths;
}

StatusOr<Tensor> WithLengths(const Tensor& strings, const Tensor& lengths, int64_t max_total) {
  if (strings.dtype() != DT_STRING || lengths.dtype() != DT_INT64 ||
      strings.shape() != lengths.shape()) {
    return absl::InvalidArgumentError(
        absl::StrCat("npy: lengths must be int64 of the shape of their strings, got ",
                     DTypeName(lengths.dtype()), lengths.shape().ToString(), " for ",
                     DTypeName(strings.dtype()), strings.shape().ToString()));
  }
  MR_ASSIGN_OR_RETURN(Tensor result, strings.Clone());
  const absl::Span<const int64_t> sizes = lengths.raw<int64_t>();
  const absl::Span<std::string> out = result.mutable_raw<std::string>();
  int64_t left = max_total;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || sizes[i] > left) {
      return absl::InvalidArgumentError(absl::StrCat("npy: lengths[", i,
                                                     "] must be >= 0 and lengths at most ",
                                                     max_total, " in all, got ", sizes[i]));
    }
    left -= sizes[i];
    out[i].resize(static_cast<size_t>(sizes[i]));
  }
  return result;
}

}  // namespace millrace

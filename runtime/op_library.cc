// SPDX-License-Identifier: Apache-2.0
#include "runtime/op_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "core/exceptions.h"
#include "core/file_system.h"
#include "core/hash_table.h"
#include "core/mutex.h"
#include "graph/pending_registrations.h"
#include "runtime/library_name.h"

namespace millrace {
namespace {

using op_library_internal::Initialiser;

// --- The version, read before a library's code runs ----------------------------------------------

// Notes of a library are a few hundred bytes.
constexpr uint64_t kMaxNoteBytes = 1 << 20;

// The version in one segment of notes.
std::optional<std::string> FindVersion(absl::string_view notes, uint64_t alignment) {
  const uint64_t unit = alignment == 8 ? 8 : 4;
  const auto padded = [unit](uint64_t size) { return (size + unit - 1) / unit * unit; };
  while (notes.size() >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr note;
    std::memcpy(&note, notes.data(), sizeof(note));
    notes.remove_prefix(sizeof(note));
    const uint64_t name_size = padded(note.n_namesz), size = name_size + padded(note.n_descsz);
    if (size > notes.size()) return std::nullopt;
    absl::string_view name = notes.substr(0, note.n_namesz);
    absl::string_view version = notes.substr(name_size, note.n_descsz);
    if (note.n_type == op_library_internal::kVersionNote &&
        name == absl::string_view(op_library_internal::kNoteName,
                                  sizeof(op_library_internal::kNoteName))) {
      return std::string(version.substr(0, version.find('\0')));
    }
    notes.remove_prefix(size);
  }
  return std::nullopt;
}

// What the file says of itself.
struct LibraryFile {
  bool is_elf = false;    // for 64 bits, and its segments are listed
  bool is_whole = false;  // what it is to be loaded from is there
  std::optional<std::string> version;
};

StatusOr<LibraryFile> ReadLibraryFile(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const auto file, FileSystem::Posix()->NewRandomAccessFile(path));
  LibraryFile result;
  Elf64_Ehdr header;
  if (!file->Read(0, sizeof(header), reinterpret_cast<char*>(&header)).ok() ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_phentsize != sizeof(Elf64_Phdr)) {
    return result;
  }
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  result.is_elf = file->Read(header.e_phoff, segments.size() * sizeof(Elf64_Phdr),
                             reinterpret_cast<char*>(segments.data()))
                      .ok();
  if (!result.is_elf) return result;
  result.is_whole = true;
  for (const Elf64_Phdr& segment : segments) {
    const bool is_here =
        segment.p_offset <= file->size() && segment.p_filesz <= file->size() - segment.p_offset;
    if (segment.p_type == PT_LOAD) result.is_whole &= is_here;
    if (segment.p_type != PT_NOTE || !is_here || segment.p_filesz > kMaxNoteBytes) continue;
    std::string notes(segment.p_filesz, '\0');
    MR_RETURN_IF_ERROR(file->Read(segment.p_offset, notes.size(), notes.data()));
    if (!result.version) result.version = FindVersion(notes, segment.p_align);
  }
  return result;
}

// What two versions that work together agree in: core/version.h.
std::string MajorAndMinor(absl::string_view version) {
  std::vector<std::string> parts = absl::StrSplit(version, '.');
  parts.resize(std::min<size_t>(parts.size(), 2));
  return absl::StrJoin(parts, ".");
}

// --- Initialisers --------------------------------------------------------------------------------

// The library that this thread loads.
struct Load {
  Status status;  // of its initialisers
};
constinit thread_local Load* current_load = nullptr;

class LoadScope {
 public:
  explicit LoadScope(Load* load) { current_load = load; }
  ~LoadScope() { current_load = nullptr; }
  LoadScope(const LoadScope&) = delete;
  LoadScope& operator=(const LoadScope&) = delete;
};

void DoNothing(int, char**, char**) {}

// A loaded object, as the loader describes it.
struct Object {
  uintptr_t address_in_it;
  Initialiser* initialisers = nullptr;
  size_t num_initialisers = 0;
  uintptr_t read_only_begin = 0, read_only_end = 0;  // after relocation
};

int FindObject(dl_phdr_info* info, size_t, void* data) {
  auto* const object = static_cast<Object*>(data);
  const absl::Span<const ElfW(Phdr)> segments(info->dlpi_phdr, info->dlpi_phnum);
  const auto begin_of = [info](const ElfW(Phdr) & segment) {
    return info->dlpi_addr + segment.p_vaddr;
  };
  if (std::none_of(segments.begin(), segments.end(), [&](const ElfW(Phdr) & segment) {
        return segment.p_type == PT_LOAD && object->address_in_it >= begin_of(segment) &&
               object->address_in_it - begin_of(segment) < segment.p_memsz;
      })) {
    return 0;
  }
  for (const ElfW(Phdr) & segment : segments) {
    if (segment.p_type == PT_GNU_RELRO) {
      object->read_only_begin = begin_of(segment);
      object->read_only_end = begin_of(segment) + segment.p_memsz;
    }
    if (segment.p_type != PT_DYNAMIC) continue;
    for (auto* entry = reinterpret_cast<const ElfW(Dyn)*>(begin_of(segment));
         entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_INIT_ARRAY) {
        object->initialisers = reinterpret_cast<Initialiser*>(info->dlpi_addr + entry->d_un.d_ptr);
      } else if (entry->d_tag == DT_INIT_ARRAYSZ) {
        object->num_initialisers = entry->d_un.d_val / sizeof(Initialiser);
      }
    }
  }
  return 1;
}

// Takes the initialisers behind `first` out of the loader's list.
std::vector<Initialiser> TakeInitialisers(Initialiser first) {
  Object object = {.address_in_it = reinterpret_cast<uintptr_t>(first)};
  if (dl_iterate_phdr(&FindObject, &object) == 0) return {};
  const absl::Span<Initialiser> all(object.initialisers, object.num_initialisers);
  const auto own = std::find(all.begin(), all.end(), first);
  if (own == all.end() || own + 1 == all.end()) return {};
  const absl::Span<Initialiser> others(own + 1, static_cast<size_t>(all.end() - own - 1));
  std::vector<Initialiser> taken(others.begin(), others.end());
  // The pages of the list that the loader has made read-only: whole ones of what it may.
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto down = [page](uintptr_t address) { return address / page * page; };
  const uintptr_t begin =
      std::max(down(reinterpret_cast<uintptr_t>(others.data())), down(object.read_only_begin));
  const uintptr_t end =
      std::min(down(reinterpret_cast<uintptr_t>(others.data() + others.size()) + page - 1),
               down(object.read_only_end));
  const auto protect = [&](int how) {
    return begin >= end || mprotect(reinterpret_cast<void*>(begin), end - begin, how) == 0;
  };
  if (!protect(PROT_READ | PROT_WRITE)) return {};
  std::fill(others.begin(), others.end(), &DoNothing);
  protect(PROT_READ);
  return taken;
}

// --- Loading -------------------------------------------------------------------------------------

// Which file it was that was loaded.
struct FileIdentity {
  dev_t device;
  ino_t inode;
  off_t size;
  timespec changed;
  bool operator==(const FileIdentity& other) const {
    return device == other.device && inode == other.inode && size == other.size &&
           changed.tv_sec == other.changed.tv_sec && changed.tv_nsec == other.changed.tv_nsec;
  }
};

struct Library {
  FileIdentity file;
  StatusOr<std::vector<std::string>> result;
};

struct Libraries {
  Mutex mu;
  HashMap<void*, Library> by_handle ABSL_GUARDED_BY(mu);
};
Libraries& AllLibraries() {
  static Libraries* const libraries = new Libraries;
  return *libraries;
}

// What the loader says.
std::string LoaderError() {
  const char* const said = dlerror();
  const absl::string_view error = said == nullptr ? "no reason" : said;
  return absl::StrCat(error, absl::StrContains(error, "undefined symbol")
                                 ? "; a program that Millrace is linked into exports its symbols "
                                   "(-rdynamic), and has what the library uses"
                                 : "");
}

Status CheckVersion(const std::string& version) {
  if (MajorAndMinor(version) == MajorAndMinor(kVersion)) return absl::OkStatus();
  return FailedPrecondition("must be built for Millrace ", MajorAndMinor(kVersion),
                            " (this program is ", kVersion, "), got one built for ", version,
                            "; build it again with the headers of this version");
}

// Of what the library has registered, once it is in the process.
StatusOr<std::vector<std::string>> Register(PendingRegistrations* pending) {
  if (pending->empty()) {
    return InvalidArgument(
        "must register at least one op or kernel, got none; is it linked with a copy of Millrace "
        "of its own?");
  }
  MR_RETURN_IF_ERROR(pending->Check());
  std::vector<std::string> ops = pending->OpNames();
  pending->Publish();
  return ops;
}

StatusOr<std::vector<std::string>> LoadFile(const std::string& path, const FileIdentity& file,
                                            HashMap<void*, Library>* libraries) {
  // In the process already? The count of its users, which this raises, goes down again.
  if (void* const loaded = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD)) {
    dlclose(loaded);
    const auto it = libraries->find(loaded);
    if (it == libraries->end()) {
      return FailedPrecondition(
          "must be loaded by LoadOpLibrary alone, got a library that is in the process already, "
          "linked or opened otherwise");
    }
    if (!(it->second.file == file)) {
      return FailedPrecondition(
          "must stay as it is while a program uses it, got a file that has changed since it was "
          "loaded; start the program again to load it");
    }
    return it->second.result;
  }

  MR_ASSIGN_OR_RETURN(const LibraryFile said, ReadLibraryFile(path));
  // Of what is no library the loader says best why.
  if (said.is_elf) {
    if (!said.is_whole) {
      return InvalidArgument(
          "must be a whole library, got a file that ends before its segments do");
    }
    if (!said.version) {
      return InvalidArgument(
          "must say which version of Millrace it is built for, got none; put "
          "MILLRACE_OP_LIBRARY() into one of its sources (runtime/op_library.h)");
    }
    MR_RETURN_IF_ERROR(CheckVersion(*said.version));
  }
  TakeLibraryName(absl::StrCat("libmillrace.so.", MajorAndMinor(kVersion)));
  // Destroyed, where it is not published, while the library's code is there.
  PendingRegistrations pending;
  Load load;
  void* handle = nullptr;
  {
    const LoadScope scope(&load);
    const PendingRegistrations::Collect collect(&pending);
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (handle == nullptr) {
    return InvalidArgument("must be a library that this program can load, got: ", LoaderError());
  }
  // Memory for what is kept, before anything is registered.
  Library& library =
      libraries->emplace(handle, Library{file, absl::InternalError("its registration did not end")})
          .first->second;
  if (!said.is_elf) load.status = InvalidArgument("must be an ELF file of 64 bits");
  library.result = load.status.ok() ? Register(&pending) : load.status;
  return library.result;
}

StatusOr<FileIdentity> Identify(const std::string& path) {
  struct stat file;
  if (path.find('\0') != std::string::npos) return InvalidArgument("path must have no NUL in it");
  if (stat(path.c_str(), &file) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return absl::NotFoundError("must exist, got no file");
    return absl::ErrnoToStatus(errno, "must be a file that can be read");
  }
  if (!S_ISREG(file.st_mode)) {
    return InvalidArgument("must be a file, got ", S_ISDIR(file.st_mode) ? "a directory" : "none");
  }
  return FileIdentity{file.st_dev, file.st_ino, file.st_size, file.st_mtim};
}

}  // namespace

void op_library_internal::RunInitialisers(Initialiser first, int argc, char** argv,
                                          char** environment) noexcept {
  Load* const load = current_load;
  if (load == nullptr) return;
  const Status status = NoExceptions("an initialiser", [&]() -> Status {
    for (const Initialiser initialiser : TakeInitialisers(first)) {
      initialiser(argc, argv, environment);
    }
    return absl::OkStatus();
  });
  if (load->status.ok()) load->status = status;
}

StatusOr<std::vector<std::string>> LoadOpLibrary(const std::string& path) {
  const auto load = [&path]() -> StatusOr<std::vector<std::string>> {
    if (current_load != nullptr) {
      return FailedPrecondition("must not be called by what runs while a library is loaded");
    }
    MR_ASSIGN_OR_RETURN(const FileIdentity file, Identify(path));
    // Not searched for: a name without a slash is a file here.
    const std::unique_ptr<char, decltype(&std::free)> whole(realpath(path.c_str(), nullptr),
                                                            &std::free);
    if (whole == nullptr) return absl::ErrnoToStatus(errno, "must be a file that can be read");
    Libraries& libraries = AllLibraries();
    MutexLock lock(&libraries.mu);
    return LoadFile(whole.get(), file, &libraries.by_handle);
  };
  const std::string where = absl::StrCat("LoadOpLibrary '", path, "'");
  StatusOr<std::vector<std::string>> result = NoExceptions("loading", load);
  if (!result.ok()) return Prefixed(where, result.status());
  return result;
}

}  // namespace millrace

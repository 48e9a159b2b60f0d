// SPDX-License-Identifier: Apache-2.0
#include "runtime/library_name.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace millrace {
namespace {

constexpr uint64_t kPageBytes = 4096;

// A file of the loader's format that has a name and nothing else. Its strings follow.
struct EmptyLibrary {
  Elf64_Ehdr header;
  Elf64_Phdr segments[3];
  Elf64_Dyn dynamic[6];
  Elf64_Sym no_symbol;  // with which every table begins
};

std::string BytesOfEmptyLibrary(const std::string& name) {
  const absl::string_view end("\0", 1);
  const std::string strings = absl::StrCat(end, name, end);
  const uint64_t size = sizeof(EmptyLibrary) + strings.size();
  EmptyLibrary library = {};

  std::memcpy(library.header.e_ident, ELFMAG, SELFMAG);
  library.header.e_ident[EI_CLASS] = ELFCLASS64;
  library.header.e_ident[EI_DATA] = ELFDATA2LSB;
  library.header.e_ident[EI_VERSION] = EV_CURRENT;
  library.header.e_type = ET_DYN;
  library.header.e_machine = EM_X86_64;
  library.header.e_version = EV_CURRENT;
  library.header.e_phoff = offsetof(EmptyLibrary, segments);
  library.header.e_ehsize = sizeof(Elf64_Ehdr);
  library.header.e_phentsize = sizeof(Elf64_Phdr);
  library.header.e_phnum = 3;
  library.header.e_shentsize = sizeof(Elf64_Shdr);

  // The loader writes addresses into what it is told.
  Elf64_Phdr& all = library.segments[0];
  all.p_type = PT_LOAD;
  all.p_flags = PF_R | PF_W;
  all.p_filesz = all.p_memsz = size;
  all.p_align = kPageBytes;
  Elf64_Phdr& dynamic = library.segments[1];
  dynamic.p_type = PT_DYNAMIC;
  dynamic.p_flags = PF_R | PF_W;
  dynamic.p_offset = dynamic.p_vaddr = dynamic.p_paddr = offsetof(EmptyLibrary, dynamic);
  dynamic.p_filesz = dynamic.p_memsz = sizeof(library.dynamic);
  dynamic.p_align = alignof(Elf64_Dyn);
  // Without it the loader makes every thread's stack executable.
  library.segments[2].p_type = PT_GNU_STACK;
  library.segments[2].p_flags = PF_R | PF_W;

  library.dynamic[0].d_tag = DT_STRTAB;
  library.dynamic[0].d_un.d_ptr = sizeof(EmptyLibrary);
  library.dynamic[1].d_tag = DT_STRSZ;
  library.dynamic[1].d_un.d_val = strings.size();
  library.dynamic[2].d_tag = DT_SYMTAB;
  library.dynamic[2].d_un.d_ptr = offsetof(EmptyLibrary, no_symbol);
  library.dynamic[3].d_tag = DT_SYMENT;
  library.dynamic[3].d_un.d_val = sizeof(Elf64_Sym);
  library.dynamic[4].d_tag = DT_SONAME;
  library.dynamic[4].d_un.d_val = end.size();  // among the strings
  library.dynamic[5].d_tag = DT_NULL;

  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&library), sizeof(library)),
                      strings);
}

}  // namespace

void TakeLibraryName(const std::string& name) {
  if (void* const loaded = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD)) {
    dlclose(loaded);
    return;
  }
  const int file = memfd_create("millrace", MFD_CLOEXEC);
  if (file < 0) return;
  const std::string bytes = BytesOfEmptyLibrary(name);
  if (write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size())) {
    // Never closed: the name stays.
    dlopen(absl::StrCat("/proc/self/fd/", file).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  close(file);
  dlerror();  // what the next failure says is of that one
}

}  // namespace millrace

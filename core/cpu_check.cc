// SPDX-License-Identifier: Apache-2.0
#include "core/cpu_check.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace millrace {
namespace {

enum Word : uint8_t { kLeaf1Ecx, kLeaf7Ebx, kExtended1Ecx };

struct Feature {
  const char* name;
  Word word;
  uint8_t bit;
  uint32_t xcr0;  // bits that the system must have set
};

constexpr uint32_t kSavesYmm = 0x06;
[[maybe_unused]] constexpr uint32_t kSavesZmm = 0xe6;
constexpr uint32_t kHasXgetbv = 1u << 27;  // OSXSAVE, in leaf1_ecx

// What the compiler was allowed to use is what the CPU must have. The first entry stands for no
// instructions: the list is never empty.
constexpr Feature kFeatures[] = {
    {"", kLeaf1Ecx, 0, 0},
#ifdef __SSE3__
    {"SSE3", kLeaf1Ecx, 0, 0},
#endif
#ifdef __SSSE3__
    {"SSSE3", kLeaf1Ecx, 9, 0},
#endif
#ifdef __GCC_HAVE_SYNC_COMPARE_AND_SWAP_16
    {"CMPXCHG16B", kLeaf1Ecx, 13, 0},
#endif
#ifdef __SSE4_1__
    {"SSE4.1", kLeaf1Ecx, 19, 0},
#endif
#ifdef __SSE4_2__
    {"SSE4.2", kLeaf1Ecx, 20, 0},
#endif
#ifdef __POPCNT__
    {"POPCNT", kLeaf1Ecx, 23, 0},
#endif
#ifdef __MOVBE__
    {"MOVBE", kLeaf1Ecx, 22, 0},
#endif
#ifdef __AVX__
    {"AVX", kLeaf1Ecx, 28, kSavesYmm},
#endif
#ifdef __F16C__
    {"F16C", kLeaf1Ecx, 29, kSavesYmm},
#endif
#ifdef __FMA__
    {"FMA", kLeaf1Ecx, 12, kSavesYmm},
#endif
#ifdef __AVX2__
    {"AVX2", kLeaf7Ebx, 5, kSavesYmm},
#endif
#ifdef __BMI__
    {"BMI1", kLeaf7Ebx, 3, 0},
#endif
#ifdef __BMI2__
    {"BMI2", kLeaf7Ebx, 8, 0},
#endif
#ifdef __LZCNT__
    {"LZCNT", kExtended1Ecx, 5, 0},
#endif
#ifdef __AVX512F__
    {"AVX512F", kLeaf7Ebx, 16, kSavesZmm},
#endif
#ifdef __AVX512DQ__
    {"AVX512DQ", kLeaf7Ebx, 17, kSavesZmm},
#endif
#ifdef __AVX512CD__
    {"AVX512CD", kLeaf7Ebx, 28, kSavesZmm},
#endif
#ifdef __AVX512BW__
    {"AVX512BW", kLeaf7Ebx, 30, kSavesZmm},
#endif
#ifdef __AVX512VL__
    {"AVX512VL", kLeaf7Ebx, 31, kSavesZmm},
#endif
};

#if defined(__AVX512F__)
constexpr char kLevel[] = "x86-64-v4: Intel Skylake-SP, AMD Zen 4 or later";
#elif defined(__AVX2__)
constexpr char kLevel[] = "x86-64-v3: Intel Haswell, AMD Zen or later";
#else
constexpr char kLevel[] = "x86-64-v2 or later";
#endif

MR_ANY_X86_64 size_t Length(const char* text) {
  size_t length = 0;
  while (text[length] != '\0') ++length;
  return length;
}

// Appends what fits; `text` stays terminated.
MR_ANY_X86_64 void Append(const char* part, char* text, size_t size) {
  const size_t used = Length(text), more = Length(part);
  if (used + more >= size) return;
  for (size_t i = 0; i <= more; ++i) text[used + i] = part[i];
}

// Before initialisers without a priority, which come last.
__attribute__((constructor(101))) MR_ANY_X86_64 void CheckCpuOfLibrary() {
  CheckCpu(program_invocation_short_name);
}

}  // namespace

MR_ANY_X86_64 void CheckCpu(const char* program) {
  CpuWords words;
  const char* pretended = std::getenv("MILLRACE_PRETEND_CPU");
  if (pretended == nullptr || std::strcmp(pretended, "x86-64") != 0) words = ReadCpuWords();
  char missing[256];
  if (MissingInstructions(words, missing, sizeof(missing)) == 0) return;
  char line[768] = "";
  Append(program, line, 256);
  Append(": the CPU must have the instructions that this program was built with (", line,
         sizeof(line));
  Append(kLevel, line, sizeof(line));
  Append("), got one without ", line, sizeof(line));
  Append(missing, line, sizeof(line));
  Append("\n", line, sizeof(line));
  [[maybe_unused]] const ssize_t n = write(2, line, Length(line));
  _exit(1);
}

MR_ANY_X86_64 CpuWords ReadCpuWords() {
  CpuWords words;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  __cpuid(0, eax, ebx, ecx, edx);
  const uint32_t leaves = eax;
  __cpuid(1, eax, ebx, ecx, edx);
  words.leaf1_ecx = ecx;
  if (leaves >= 7) {
    __cpuid_count(7, 0, eax, ebx, ecx, edx);
    words.leaf7_ebx = ebx;
  }
  __cpuid(0x80000000, eax, ebx, ecx, edx);
  if (eax >= 0x80000001) {
    __cpuid(0x80000001, eax, ebx, ecx, edx);
    words.extended1_ecx = ecx;
  }
  if ((words.leaf1_ecx & kHasXgetbv) != 0) {
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    words.xcr0 = eax;
  }
  return words;
}

MR_ANY_X86_64 int MissingInstructions(const CpuWords& words, char* text, size_t size) {
  int missing = 0;
  if (size > 0) text[0] = '\0';
  for (const Feature& feature : kFeatures) {
    if (feature.name[0] == '\0') continue;
    const uint32_t word = feature.word == kLeaf1Ecx   ? words.leaf1_ecx
                          : feature.word == kLeaf7Ebx ? words.leaf7_ebx
                                                      : words.extended1_ecx;
    if (((word >> feature.bit) & 1) != 0 && (words.xcr0 & feature.xcr0) == feature.xcr0) continue;
    ++missing;
    const char* const before = Length(text) > 0 ? ", " : "";
    if (Length(text) + Length(before) + Length(feature.name) >= size) continue;
    Append(before, text, size);
    Append(feature.name, text, size);
  }
  return missing;
}

}  // namespace millrace

#endif  // __x86_64__

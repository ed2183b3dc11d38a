// Preloaded into the program under test (LD_PRELOAD): makes one system call fail after so many bytes, as a full disk, a
// failing disk or a small one would. VERBATIM_FAULT=CALL,ERRNO,BYTES with CALL pread, write or fsync; or
// statvfs,0,FREE.
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>

namespace {

struct Fault {
  char call[16] = {};
  int error = 0;
  long long bytes = 0;
};

Fault parse() {
  Fault fault;
  const char* text = ::getenv("VERBATIM_FAULT");
  const char* comma = text == nullptr ? nullptr : ::strchr(text, ',');
  if (comma == nullptr || comma - text >= static_cast<long>(sizeof fault.call)) return fault;
  ::memcpy(fault.call, text, static_cast<size_t>(comma - text));
  char* end = nullptr;
  fault.error = static_cast<int>(::strtol(comma + 1, &end, 10));
  fault.bytes = *end == ',' ? ::strtoll(end + 1, nullptr, 10) : 0;
  return fault;
}

const Fault& fault() {
  static const Fault parsed = parse();
  return parsed;
}

// Whether this call, which wants `bytes`, is to fail.
bool fails(const char* call, size_t bytes) {
  static std::atomic<long long> done{0};
  if (::strcmp(fault().call, call) != 0) return false;
  return done.fetch_add(static_cast<long long>(bytes)) + static_cast<long long>(bytes) > fault().bytes;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

ssize_t checked_pread(int fd, void* data, size_t bytes, off_t offset) {
  static auto* const real = next<ssize_t(int, void*, size_t, off_t)>("pread");
  if (fails("pread", bytes)) {
    errno = fault().error;
    return -1;
  }
  return real(fd, data, bytes, offset);
}

int checked_statvfs(const char* path, struct statvfs* info) {
  static auto* const real = next<int(const char*, struct statvfs*)>("statvfs");
  const int result = real(path, info);
  if (result == 0 && ::strcmp(fault().call, "statvfs") == 0)
    info->f_bavail = static_cast<fsblkcnt_t>(fault().bytes) / info->f_frsize;
  return result;
}

}  // namespace

extern "C" {

ssize_t pread(int fd, void* data, size_t bytes, off_t offset) { return checked_pread(fd, data, bytes, offset); }

ssize_t write(int fd, const void* data, size_t bytes) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  if (fails("write", bytes)) {
    errno = fault().error;
    return -1;
  }
  return real(fd, data, bytes);
}

int fsync(int fd) {
  static auto* const real = next<int(int)>("fsync");
  if (fails("fsync", 1)) {
    errno = fault().error;
    return -1;
  }
  return real(fd);
}

int statvfs(const char* path, struct statvfs* info) { return checked_statvfs(path, info); }
}

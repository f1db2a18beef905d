// libcuda.so.1: memory of the device and page-locked memory of the host, copies and fills.
#include <cstring>

#include "driver.h"

using namespace stand_in;

namespace {

void* at(uintptr_t address) { return reinterpret_cast<void*>(address); }

// Neither a capture nor a failed context allows what needs the whole device.
int ready_outside_capture(const Call& call) {
    if (const int error = call.ready()) return error;
    for (const auto& [handle, stream] : driver().streams)
        if (stream->capture) return stream->capture_failed = true, STREAM_CAPTURE_UNSUPPORTED;
    return SUCCESS;
}

int allocate(uintptr_t* address, size_t bytes) {
    if (bytes == 0) return INVALID_VALUE;
    void* memory = driver().memory.allocate(bytes);
    if (!memory) {
        // What was freed in a stream's order is free when the stream has come there.
        driver().run_all();
        memory = driver().memory.allocate(bytes);
    }
    *address = reinterpret_cast<uintptr_t>(memory);
    return memory ? SUCCESS : OUT_OF_MEMORY;
}

// Queues a copy whose device sides are checked when it is queued and again when it runs.
struct Side {
    uintptr_t address;
    bool device;
    bool valid(size_t bytes) const { return !device || driver().memory.contains(at(address), bytes); }
};

int copy(const Call& call, Side target, Side source, size_t bytes, void* stream_handle) {
    if (const int error = call.ready()) return error;
    const auto stream = driver().stream(stream_handle);
    if (!stream) return INVALID_HANDLE;
    if (!target.valid(bytes) || !source.valid(bytes)) return INVALID_VALUE;
    enqueue(*stream, [=] {
        if (!target.valid(bytes) || !source.valid(bytes))
            return driver().fail(ILLEGAL_ADDRESS, "a copy ran whose device memory had been freed");
        std::memmove(at(target.address), at(source.address), bytes);
    });
    return SUCCESS;
}

// From the host. Page-locked memory is read when the copy runs, other memory is staged now.
int copy_from_host(const Call& call, uintptr_t target, const void* source, size_t bytes, void* stream_handle) {
    if (driver().is_pinned(source, bytes))
        return copy(call, {target, true}, {reinterpret_cast<uintptr_t>(source), false}, bytes, stream_handle);
    if (const int error = call.ready()) return error;
    const auto stream = driver().stream(stream_handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->capture) return stream->capture_failed = true, STREAM_CAPTURE_UNSUPPORTED;
    const Side side{target, true};
    if (!side.valid(bytes)) return INVALID_VALUE;
    const auto* start = static_cast<const unsigned char*>(source);
    enqueue(*stream, [=, staged = std::vector<unsigned char>(start, start + bytes)] {
        if (!side.valid(bytes)) return driver().fail(ILLEGAL_ADDRESS, "a copy ran whose device memory had been freed");
        std::memcpy(at(target), staged.data(), bytes);
    });
    return SUCCESS;
}

// To the host. Into other than page-locked memory it is done when the call returns, so the host waits.
int copy_to_host(Call& call, void* target, uintptr_t source, size_t bytes, void* stream_handle, bool blocking) {
    const auto stream = driver().stream(stream_handle);
    blocking |= !driver().is_pinned(target, bytes);
    if (stream && stream->capture && blocking) return stream->capture_failed = true, STREAM_CAPTURE_UNSUPPORTED;
    if (const int error = copy(call, {reinterpret_cast<uintptr_t>(target), false}, {source, true}, bytes, stream_handle)) return error;
    if (blocking && call.wait()) stream->run_to(stream->end());
    return driver().error;
}

int finish(Call& call, int error) {
    if (error != SUCCESS) return error;
    const auto stream = driver().stream(nullptr);
    if (call.wait()) stream->run_to(stream->end());
    return driver().error;
}

int fill(const Call& call, uintptr_t target, unsigned char value, size_t bytes, void* stream_handle) {
    if (const int error = call.ready()) return error;
    const auto stream = driver().stream(stream_handle);
    if (!stream) return INVALID_HANDLE;
    const Side side{target, true};
    if (!side.valid(bytes)) return INVALID_VALUE;
    enqueue(*stream, [=] {
        if (!side.valid(bytes)) return driver().fail(ILLEGAL_ADDRESS, "a fill ran whose device memory had been freed");
        std::memset(at(target), value, bytes);
    });
    return SUCCESS;
}

}  // namespace

WEIR_API cuMemGetInfo_v2(size_t* free, size_t* total) {
    Call call("cuMemGetInfo_v2");
    if (const int error = call.ready()) return error;
    const auto& memory = driver().memory;
    *total = memory.total;
    *free = memory.total - std::min(memory.total, memory.used());
    return SUCCESS;
}

WEIR_API cuMemGetAddressRange_v2(uintptr_t* base, size_t* bytes, uintptr_t pointer) {
    Call call("cuMemGetAddressRange_v2");
    const auto range = driver().memory.range(at(pointer));
    if (!range) return INVALID_VALUE;
    if (base) *base = range->first;
    if (bytes) *bytes = range->second;
    return SUCCESS;
}

WEIR_API cuMemAlloc_v2(uintptr_t* address, size_t bytes) {
    Call call("cuMemAlloc_v2");
    if (const int error = ready_outside_capture(call)) return error;
    return allocate(address, bytes);
}

WEIR_API cuMemAllocAsync(uintptr_t* address, size_t bytes, void* stream_handle) {
    Call call("cuMemAllocAsync");
    if (const int error = call.ready()) return error;
    const auto stream = driver().stream(stream_handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->capture) return stream->capture_failed = true, NOT_SUPPORTED;
    return allocate(address, bytes);
}

// Waits for the whole device, as the driver does.
WEIR_API cuMemFree_v2(uintptr_t address) {
    Call call("cuMemFree_v2");
    if (const int error = ready_outside_capture(call)) return error;
    if (!driver().memory.contains(at(address), 0)) return INVALID_VALUE;
    if (call.wait()) driver().run_all();
    return driver().memory.release(at(address)) ? driver().error : INVALID_VALUE;
}

WEIR_API cuMemFreeAsync(uintptr_t address, void* stream_handle) {
    Call call("cuMemFreeAsync");
    if (const int error = call.ready()) return error;
    const auto stream = driver().stream(stream_handle);
    if (!stream || !driver().memory.contains(at(address), 0)) return INVALID_VALUE;
    if (stream->capture) return stream->capture_failed = true, NOT_SUPPORTED;
    enqueue(*stream, [=] {
        if (!driver().memory.release(at(address))) driver().fail(INVALID_VALUE, "memory was freed twice");
    });
    return SUCCESS;
}

WEIR_API cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
    Call call("cuMemHostAlloc");
    if (const int error = call.ready()) return error;
    if (bytes == 0) return INVALID_VALUE;
    auto memory = std::make_unique<unsigned char[]>(bytes);
    *pointer = memory.get();
    const auto start = reinterpret_cast<uintptr_t>(memory.get());
    driver().pinned[start + bytes] = {start, std::move(memory)};
    return SUCCESS;
}

WEIR_API cuMemFreeHost(void* pointer) {
    Call call("cuMemFreeHost");
    // Copies under way still need it: the driver waits for them, however long the device takes.
    if (driver().error == SUCCESS && call.wait()) driver().run_all();
    auto& pinned = driver().pinned;
    for (auto entry = pinned.begin(); entry != pinned.end(); ++entry)
        if (entry->second.first == reinterpret_cast<uintptr_t>(pointer)) return pinned.erase(entry), SUCCESS;
    return INVALID_VALUE;
}

WEIR_API cuMemcpyHtoDAsync_v2(uintptr_t target, const void* source, size_t bytes, void* stream) {
    Call call("cuMemcpyHtoDAsync_v2");
    return copy_from_host(call, target, source, bytes, stream);
}

WEIR_API cuMemcpyHtoD_v2(uintptr_t target, const void* source, size_t bytes) {
    Call call("cuMemcpyHtoD_v2");
    return finish(call, copy_from_host(call, target, source, bytes, nullptr));
}

WEIR_API cuMemcpyDtoHAsync_v2(void* target, uintptr_t source, size_t bytes, void* stream) {
    Call call("cuMemcpyDtoHAsync_v2");
    return copy_to_host(call, target, source, bytes, stream, false);
}

WEIR_API cuMemcpyDtoH_v2(void* target, uintptr_t source, size_t bytes) {
    Call call("cuMemcpyDtoH_v2");
    return copy_to_host(call, target, source, bytes, nullptr, true);
}

WEIR_API cuMemcpyDtoDAsync_v2(uintptr_t target, uintptr_t source, size_t bytes, void* stream) {
    Call call("cuMemcpyDtoDAsync_v2");
    return copy(call, {target, true}, {source, true}, bytes, stream);
}

WEIR_API cuMemcpyDtoD_v2(uintptr_t target, uintptr_t source, size_t bytes) {
    Call call("cuMemcpyDtoD_v2");
    return copy(call, {target, true}, {source, true}, bytes, nullptr);
}

WEIR_API cuMemcpyPeerAsync(uintptr_t target, void*, uintptr_t source, void*, size_t bytes, void* stream) {
    Call call("cuMemcpyPeerAsync");
    return copy(call, {target, true}, {source, true}, bytes, stream);
}

WEIR_API cuMemsetD8Async(uintptr_t target, unsigned char value, size_t bytes, void* stream) {
    Call call("cuMemsetD8Async");
    return fill(call, target, value, bytes, stream);
}

WEIR_API cuMemsetD8_v2(uintptr_t target, unsigned char value, size_t bytes) {
    Call call("cuMemsetD8_v2");
    return fill(call, target, value, bytes, nullptr);
}

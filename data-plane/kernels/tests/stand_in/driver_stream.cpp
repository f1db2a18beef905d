// libcuda.so.1: streams, events, graphs.
#include <chrono>

#include "driver.h"

using namespace stand_in;

namespace {

// After so many vain queries the work runs: a device would get on with it, and a host that polls must come to an end.
constexpr unsigned VAIN_QUERIES = 2;

template <class T> void* adopt(std::map<void*, std::shared_ptr<T>>& table, std::shared_ptr<T> object) {
    void* handle = object.get();
    table[handle] = std::move(object);
    return handle;
}

template <class T> std::shared_ptr<T> find(const std::map<void*, std::shared_ptr<T>>& table, void* handle) {
    const auto found = table.find(handle);
    return found == table.end() ? nullptr : found->second;
}

int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

bool reached(const Mark& mark) { return !mark.stream || mark.stream->done >= mark.position; }

// Asks whether a mark is reached, in vain at first.
int query(const Mark& mark, unsigned& queries) {
    if (driver().error != SUCCESS) return driver().error;
    if (reached(mark)) return SUCCESS;
    if (driver().settings.hang || queries++ < VAIN_QUERIES) return NOT_READY;
    mark.stream->run_to(mark.position);
    return driver().error;
}

int create_stream(const Call& call, void** handle) {
    if (const int error = call.ready()) return error;
    *handle = adopt(driver().streams, std::make_shared<Stream>());
    return SUCCESS;
}

}  // namespace

WEIR_API cuStreamCreate(void** handle, unsigned) {
    Call call("cuStreamCreate");
    return create_stream(call, handle);
}

WEIR_API cuStreamCreateWithPriority(void** handle, unsigned, int) {
    Call call("cuStreamCreateWithPriority");
    return create_stream(call, handle);
}

WEIR_API cuStreamDestroy_v2(void* handle) {
    Call call("cuStreamDestroy_v2");
    const auto stream = driver().stream(handle);
    if (!handle || !stream) return INVALID_HANDLE;
    // The device finishes what is queued, without the host.
    if (!driver().settings.hang) stream->run_to(stream->end());
    driver().streams.erase(handle);
    return SUCCESS;
}

WEIR_API cuStreamSynchronize(void* handle) {
    Call call("cuStreamSynchronize");
    if (const int error = call.ready()) return error;
    const auto stream = driver().stream(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->capture) return stream->capture_failed = true, STREAM_CAPTURE_UNSUPPORTED;
    const auto end = stream->end();
    if (call.wait()) stream->run_to(end);
    return driver().error;
}

WEIR_API cuStreamQuery(void* handle) {
    Call call("cuStreamQuery");
    if (const int error = call.ready()) return error;
    const auto stream = driver().stream(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->capture) return stream->capture_failed = true, STREAM_CAPTURE_UNSUPPORTED;
    unsigned queries = VAIN_QUERIES;
    return query({stream, stream->end()}, queries);
}

WEIR_API cuStreamWaitEvent(void* handle, void* event_handle, unsigned) {
    Call call("cuStreamWaitEvent");
    if (const int error = call.ready()) return error;
    const auto stream = driver().stream(handle);
    const auto event = find(driver().events, event_handle);
    if (!stream || !event) return INVALID_HANDLE;
    // A capture's work is kept in the order in which it was called, so inside it an event orders by itself.
    if (event->captured) return stream->capture = event->captured, SUCCESS;
    if (stream->capture) return stream->capture_failed = true, STREAM_CAPTURE_UNSUPPORTED;
    if (event->mark.stream) stream->push({{}, event->mark});
    return SUCCESS;
}

WEIR_API cuEventCreate(void** handle, unsigned) {
    Call call("cuEventCreate");
    if (const int error = call.ready()) return error;
    *handle = adopt(driver().events, std::make_shared<Event>());
    return SUCCESS;
}

WEIR_API cuEventDestroy_v2(void* handle) {
    Call call("cuEventDestroy_v2");
    return driver().events.erase(handle) ? SUCCESS : INVALID_HANDLE;
}

WEIR_API cuEventRecord(void* handle, void* stream_handle) {
    Call call("cuEventRecord");
    if (const int error = call.ready()) return error;
    const auto stream = driver().stream(stream_handle);
    const auto event = find(driver().events, handle);
    if (!stream || !event) return INVALID_HANDLE;
    event->captured = stream->capture;
    if (stream->capture) return SUCCESS;
    auto nanoseconds = std::make_shared<int64_t>(0);
    enqueue(*stream, [nanoseconds] { *nanoseconds = now(); });
    event->nanoseconds = std::move(nanoseconds);
    event->mark = {stream, stream->end()};
    event->recorded = true;
    event->queries = 0;
    return SUCCESS;
}

WEIR_API cuEventSynchronize(void* handle) {
    Call call("cuEventSynchronize");
    if (const int error = call.ready()) return error;
    const auto event = find(driver().events, handle);
    if (!event) return INVALID_HANDLE;
    if (event->captured) return STREAM_CAPTURE_UNSUPPORTED;
    const Mark mark = event->mark;
    if (call.wait() && mark.stream) mark.stream->run_to(mark.position);
    return driver().error;
}

WEIR_API cuEventQuery(void* handle) {
    Call call("cuEventQuery");
    if (const int error = call.ready()) return error;
    const auto event = find(driver().events, handle);
    if (!event) return INVALID_HANDLE;
    if (event->captured) return STREAM_CAPTURE_UNSUPPORTED;
    return query(event->mark, event->queries);
}

WEIR_API cuEventElapsedTime_v2(float* milliseconds, void* from_handle, void* to_handle) {
    Call call("cuEventElapsedTime_v2");
    if (const int error = call.ready()) return error;
    const auto from = find(driver().events, from_handle), to = find(driver().events, to_handle);
    if (!from || !to || !from->recorded || !to->recorded) return INVALID_HANDLE;
    if (!reached(from->mark) || !reached(to->mark)) return NOT_READY;
    *milliseconds = float(*to->nanoseconds - *from->nanoseconds) * 1e-6f;
    return SUCCESS;
}
WEIR_API cuEventElapsedTime(float* milliseconds, void* from, void* to) { return cuEventElapsedTime_v2(milliseconds, from, to); }

WEIR_API cuLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
    Call call("cuLaunchHostFunc");
    if (const int error = call.ready()) return error;
    const auto stream = driver().stream(handle);
    if (!stream) return INVALID_HANDLE;
    enqueue(*stream, [=] { function(data); });
    return SUCCESS;
}

WEIR_API cuStreamBeginCapture_v2(void* handle, int) {
    Call call("cuStreamBeginCapture_v2");
    if (const int error = call.ready()) return error;
    const auto stream = driver().stream(handle);
    if (!handle || !stream || stream->capture) return stream ? STREAM_CAPTURE_UNSUPPORTED : INVALID_HANDLE;
    stream->capture = std::make_shared<Graph>();
    stream->began_capture = true;
    stream->capture_failed = false;
    return SUCCESS;
}

WEIR_API cuStreamEndCapture(void* handle, void** graph_handle) {
    Call call("cuStreamEndCapture");
    if (const int error = call.ready()) return error;
    const auto stream = driver().stream(handle);
    *graph_handle = nullptr;
    if (!stream || !stream->began_capture) return STREAM_CAPTURE_UNMATCHED;
    const auto graph = stream->capture;
    bool failed = false;
    for (const auto& [other_handle, other] : driver().streams) {
        if (other->capture != graph) continue;
        failed |= other->capture_failed;
        other->capture = nullptr;
        other->began_capture = other->capture_failed = false;
    }
    if (failed) return STREAM_CAPTURE_INVALIDATED;
    *graph_handle = adopt(driver().graphs, graph);
    return SUCCESS;
}

WEIR_API cuStreamIsCapturing(void* handle, int* status) {
    Call call("cuStreamIsCapturing");
    const auto stream = driver().stream(handle);
    if (!stream) return INVALID_HANDLE;
    *status = !stream->capture ? 0 : stream->capture_failed ? 2 : 1;
    return SUCCESS;
}

// A driver keeps parameters and code addresses of each node on the device; how many bytes is its own affair.
constexpr size_t GRAPH_NODE_BYTES = 4096;

WEIR_API cuGraphInstantiateWithFlags(void** executable, void* handle, unsigned long long) {
    Call call("cuGraphInstantiateWithFlags");
    if (const int error = call.ready()) return error;
    const auto graph = find(driver().graphs, handle);
    if (!graph) return INVALID_HANDLE;
    const auto instance = std::make_shared<Graph>(*graph);
    instance->memory = driver().memory.allocate(GRAPH_NODE_BYTES * graph->work.size());
    if (!instance->memory) return OUT_OF_MEMORY;
    *executable = adopt(driver().executables, instance);
    return SUCCESS;
}

WEIR_API cuGraphUpload(void* executable, void*) {
    Call call("cuGraphUpload");
    return find(driver().executables, executable) ? call.ready() : INVALID_HANDLE;
}

WEIR_API cuGraphLaunch(void* executable, void* stream_handle) {
    Call call("cuGraphLaunch");
    if (const int error = call.ready()) return error;
    const auto graph = find(driver().executables, executable);
    const auto stream = driver().stream(stream_handle);
    if (!graph || !stream) return INVALID_HANDLE;
    if (driver().launches++ == driver().settings.failing_launch) return driver().settings.failure;
    enqueue(*stream, [graph] {
        for (const auto& work : graph->work) work.run();
    });
    return SUCCESS;
}

WEIR_API cuGraphExecDestroy(void* executable) {
    Call call("cuGraphExecDestroy");
    if (const auto graph = find(driver().executables, executable)) driver().memory.release(graph->memory);
    return driver().executables.erase(executable) ? SUCCESS : INVALID_HANDLE;
}

WEIR_API cuGraphDestroy(void* handle) {
    Call call("cuGraphDestroy");
    return driver().graphs.erase(handle) ? SUCCESS : INVALID_HANDLE;
}

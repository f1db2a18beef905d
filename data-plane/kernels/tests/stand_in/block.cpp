// The scheduler of a block's threads, and what is watched meanwhile: barriers, masks, stacks and shared memory.
#include "block.h"

#include <algorithm>
#include <cstdio>
#include <link.h>

#include "sanitizer.h"

namespace stand_in {
namespace {

constinit thread_local BlockRunner* runner = nullptr;

std::string text(dim3 index) {
    return std::to_string(index.x) + "," + std::to_string(index.y) + "," + std::to_string(index.z);
}

// The extent of the static __shared__ variables of the module that `anchor` belongs to, for this thread.
struct StaticShared {
    const void* anchor;
    unsigned char* start = nullptr;
    size_t bytes = 0;

    static int visit(dl_phdr_info* info, size_t, void* data) {
        auto& self = *static_cast<StaticShared*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
            if (info->dlpi_phdr[i].p_type != PT_TLS || !info->dlpi_tls_data) continue;
            auto* start = static_cast<unsigned char*>(info->dlpi_tls_data);
            const size_t bytes = info->dlpi_phdr[i].p_memsz;
            if (self.anchor < start || self.anchor >= start + bytes) continue;
            self.start = start, self.bytes = bytes;
            return 1;
        }
        return 0;
    }
};

void entry() { runner->run_fiber(); }

}  // namespace

constinit thread_local Thread* current = nullptr;

void fault(const char* what) { runner->fault(what); }
Vote wait_for_block(Place place, bool predicate) { return runner->wait_for_block(place, predicate); }
const Slot* wait_for_lanes(Place place, unsigned mask, const void* value, size_t size, Combine combine) {
    return runner->wait_for_lanes(place, mask, value, size, combine);
}

void arrange(std::vector<unsigned>& indices, size_t count, Order order, std::mt19937_64& random) {
    indices.resize(count);
    for (size_t i = 0; i < count; ++i) indices[i] = unsigned(order == Order::reverse ? count - 1 - i : i);
    if (order == Order::seeded) std::shuffle(indices.begin(), indices.end(), random);
}

unsigned char* DynamicShared::prepare(size_t bytes) {
    if (!memory_ || bytes > capacity_) {
        capacity_ = bytes;
        memory_ = std::make_unique<unsigned char[]>(capacity_ + 2 * MARGIN + 128);
    }
    const auto first = reinterpret_cast<uintptr_t>(memory_.get()) + MARGIN;
    start_ = reinterpret_cast<unsigned char*>((first + 127) & ~uintptr_t(127));
    bytes_ = bytes;
    ASAN_UNPOISON_MEMORY_REGION(memory_.get(), capacity_ + 2 * MARGIN + 128);
    std::memset(start_ - MARGIN, 0xff, bytes + 2 * MARGIN);
    ASAN_POISON_MEMORY_REGION(start_ - MARGIN, MARGIN);
    ASAN_POISON_MEMORY_REGION(start_ + bytes, MARGIN);
    return start_;
}

std::optional<long> DynamicShared::damage() const {
    if (IS_SANITIZED) return {};  // The sanitizer itself watches the margins.
    const auto intact = [](unsigned char byte) { return byte == 0xff; };
    const auto* behind = std::find_if_not(start_ + bytes_, start_ + bytes_ + MARGIN, intact);
    if (behind != start_ + bytes_ + MARGIN) return behind - start_;
    const auto* before = std::find_if_not(start_ - MARGIN, start_, intact);
    if (before != start_) return before - start_;
    return {};
}

void BlockRunner::begin(const Launch& launch) {
    launch_ = &launch;
    runner = this;
    StaticShared shared{launch.kernel.static_shared()};
    dl_iterate_phdr(StaticShared::visit, &shared);
    static_shared_ = shared.start;
    static_bytes_ = shared.bytes;
}

std::optional<std::string> BlockRunner::run(dim3 index) {
    prepare(index);
    advance();
    current = nullptr;
    if (!error_) {
        if (const auto offset = shared_.damage())
            blame("byte " + std::to_string(*offset) + " of " + std::to_string(block_.dynamic_bytes) +
                      " of dynamic shared memory was written", nullptr);
        for (size_t i = 0; i < fibers_.size() && !error_; ++i)
            if (stacks_.overflowed(i)) blame("the stack overflowed", &fibers_[i]);
    }
    return std::move(error_);
}

void BlockRunner::prepare(dim3 index) {
    const Launch& launch = *launch_;
    error_.reset();
    const size_t count = size_t(launch.threads.x) * launch.threads.y * launch.threads.z;
    block_ = {index, launch.threads, launch.grid, shared_.prepare(launch.dynamic_bytes), launch.dynamic_bytes};
    if (static_shared_) std::memset(static_shared_, 0xff, static_bytes_);
    random_.seed(launch.schedule.seed ^ (uint64_t(index.z) << 42 ^ uint64_t(index.y) << 21 ^ index.x));
    fibers_.resize(count);
    warps_.resize((count + WARP - 1) / WARP);
    stacks_.reserve(count);
    for (size_t i = 0; i < count; ++i) {
        auto& fiber = fibers_[i];
        const auto linear = unsigned(i), x = launch.threads.x, y = launch.threads.y;
        fiber.index = dim3(linear % x, linear / x % y, linear / (x * y));
        fiber.linear = linear;
        fiber.block = &block_;
        fiber.copies.clear();
        fiber.copy_group = 0;
        fiber.state = Fiber::State::ready;
        fiber.context = stacks_.prepare(i, entry);
    }
}

void BlockRunner::advance() {
    do {
        arrange(warp_order_, warps_.size(), launch_->schedule.order, random_);
        for (const unsigned warp : warp_order_) {
            advance_warp(warp);
            if (error_) return;
        }
    } while (release_block());
}

// Runs one warp until none of its lanes can go on.
void BlockRunner::advance_warp(unsigned warp) {
    const size_t first = size_t(warp) * WARP, lanes = std::min<size_t>(WARP, fibers_.size() - first);
    do {
        arrange(lane_order_, lanes, launch_->schedule.order, random_);
        for (const unsigned lane : lane_order_) {
            auto& fiber = fibers_[first + lane];
            if (fiber.state == Fiber::State::ready) resume(fiber);
            if (error_) return;
        }
    } while (release_lanes(warp));
}

void BlockRunner::resume(Fiber& fiber) {
    current = &fiber;
    switch_context(scheduler_, fiber.context, false);
    arrived(scheduler_, nullptr);
}

// Lets one group of lanes go on that has come complete. Its lanes read what they were handed when they are resumed,
// which all of them are before this is called again; so one set of slots serves.
bool BlockRunner::release_lanes(unsigned warp) {
    const size_t first = size_t(warp) * WARP, end = std::min(first + WARP, fibers_.size());
    for (size_t i = first; i < end && !error_; ++i)
        if (fibers_[i].state == Fiber::State::at_lanes && release_group(warp, fibers_[i])) return true;
    return false;
}

bool BlockRunner::release_group(unsigned warp, const Fiber& leader) {
    const size_t first = size_t(warp) * WARP;
    for (unsigned lane = 0; lane < WARP; ++lane) {
        if (!(leader.mask >> lane & 1)) continue;
        if (first + lane >= fibers_.size()) return false;
        const auto& fiber = fibers_[first + lane];
        if (fiber.state != Fiber::State::at_lanes || fiber.mask != leader.mask) return false;
        if (!(fiber.place == leader.place)) {
            blame("lanes of one mask wait at different operations" + waiting(), &fiber);
            return false;
        }
    }
    auto& slots = warps_[warp].slots;
    std::memset(static_cast<void*>(slots), 0xff, sizeof slots);
    for (unsigned lane = 0; lane < WARP; ++lane) {
        if (!(leader.mask >> lane & 1)) continue;
        slots[lane] = fibers_[first + lane].handed;
        fibers_[first + lane].state = Fiber::State::ready;
    }
    if (leader.combine) leader.combine(slots);
    return true;
}

// Lets the block pass its barrier if all of it has come; false when the block has ended, well or not.
bool BlockRunner::release_block() {
    const auto count = [&](Fiber::State state) {
        return size_t(std::count_if(fibers_.begin(), fibers_.end(), [&](const Fiber& fiber) { return fiber.state == state; }));
    };
    const size_t at_block = count(Fiber::State::at_block), done = count(Fiber::State::done);
    if (done == fibers_.size()) return false;
    if (at_block + done != fibers_.size()) {
        blame("deadlock: lanes wait for lanes that do not come" + waiting(), nullptr);
        return false;
    }
    if (done) {
        blame("divergent barrier: some threads have returned, others wait" + waiting(), nullptr);
        return false;
    }
    vote_.nonzero = 0;
    for (auto& fiber : fibers_) {
        if (!(fiber.place == fibers_[0].place)) {
            blame("divergent barrier: threads wait at different places" + waiting(), nullptr);
            return false;
        }
        vote_.nonzero += fiber.predicate;
        fiber.state = Fiber::State::ready;
    }
    return true;
}

void BlockRunner::run_fiber() {
    arrived(static_cast<Fiber*>(current)->context, &scheduler_);
    launch_->kernel.body(launch_->arguments);
    static_cast<Fiber*>(current)->state = Fiber::State::done;
    leave(true);
    __builtin_unreachable();
}

void BlockRunner::leave(bool last) {
    auto& fiber = *static_cast<Fiber*>(current);
    switch_context(fiber.context, scheduler_, last);
    arrived(fiber.context, &scheduler_);
}

Vote BlockRunner::wait_for_block(Place place, bool predicate) {
    auto& fiber = *static_cast<Fiber*>(current);
    fiber.place = place;
    fiber.predicate = predicate;
    fiber.state = Fiber::State::at_block;
    leave(false);
    return vote_;
}

const Slot* BlockRunner::wait_for_lanes(Place place, unsigned mask, const void* value, size_t size, Combine combine) {
    auto& fiber = *static_cast<Fiber*>(current);
    if (!(mask >> fiber.lane() & 1)) fault("a lane is not in the mask that it gives");
    fiber.place = place;
    fiber.mask = mask;
    fiber.combine = combine;
    std::memcpy(fiber.handed.bytes, value, size);
    fiber.state = Fiber::State::at_lanes;
    leave(false);
    return warps_[fiber.linear / WARP].slots;
}

void BlockRunner::fault(const char* what) {
    blame(what, static_cast<Fiber*>(current));
    leave(true);
    __builtin_unreachable();
}

void BlockRunner::blame(const std::string& what, const Fiber* fiber) {
    if (error_) return;
    error_ = std::string("kernel ") + launch_->kernel.name + ", block " + text(block_.index);
    if (fiber) *error_ += ", thread " + text(fiber->index);
    *error_ += ": " + what;
}

// The first thread of each kind of wait.
std::string BlockRunner::waiting() const {
    std::string list;
    std::vector<Place> seen;
    for (const auto& fiber : fibers_) {
        if (fiber.state != Fiber::State::at_block && fiber.state != Fiber::State::at_lanes) continue;
        if (std::find(seen.begin(), seen.end(), fiber.place) != seen.end()) continue;
        seen.push_back(fiber.place);
        list += "\n  thread " + text(fiber.index) + " at " + fiber.place.operation + ", " + fiber.place.file + ":" +
                std::to_string(fiber.place.line);
        if (fiber.state == Fiber::State::at_lanes) {
            char mask[16];
            std::snprintf(mask, sizeof mask, "%08x", fiber.mask);
            list += std::string(", mask ") + mask;
        }
    }
    return list;
}

}  // namespace stand_in

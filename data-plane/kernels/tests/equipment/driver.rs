//! What hosts get wrong: events, host buffers, graphs, pages; and the faults that a test can ask for.

use std::time::Duration;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, DevicePtr, PushKernelArg, result};
use weir_stand_in::Failure;

use crate::support::{Device, grid, stand_in};

/// Queues the addition of `value` to all of `target`.
fn add(device: &Device, target: &mut CudaSlice<f32>, value: f32) -> Result<(), cudarc::driver::DriverError> {
    let kernel = device.kernel("equipment_add");
    let count = u32::try_from(target.len()).unwrap();
    let mut launch = device.stream.launch_builder(&kernel);
    launch.arg(target).arg(&count).arg(&value).arg(&0_u32);
    // SAFETY: the arguments are the kernel's, and the buffer holds what it touches.
    unsafe { launch.launch(grid(count.div_ceil(32), 32, 0)) }.map(|_| ())
}

#[test]
fn work_of_another_stream_is_not_done_unless_its_event_is_waited_for() {
    for waits in [true, false] {
        let _stand_in = stand_in();
        let device = Device::new();
        let mut buffer = device.stream.alloc_zeros::<f32>(8).unwrap();
        device.stream.synchronize().unwrap();
        add(&device, &mut buffer, 2.0).unwrap();
        let copies = device.context.new_stream().unwrap();
        if waits {
            copies.wait(&device.stream.record_event(None).unwrap()).unwrap();
        }
        assert_eq!(copies.clone_dtoh(&buffer).unwrap() == vec![2.0; 8], waits);
        device.stream.synchronize().unwrap();
    }
}

#[test]
fn a_page_locked_buffer_is_read_when_the_copy_runs() {
    for early in [false, true] {
        let _stand_in = stand_in();
        let device = Device::new();
        // SAFETY: it is written before it is read.
        let mut host = unsafe { device.context.alloc_pinned::<f32>(4) }.unwrap();
        host.as_mut_slice().unwrap().fill(1.0);
        let address = host.as_mut_ptr().unwrap();
        let mut buffer = device.stream.alloc_zeros::<f32>(4).unwrap();
        device.stream.memcpy_htod(&host, &mut buffer).unwrap();
        if !early {
            device.stream.synchronize().unwrap();
        }
        // SAFETY: inside the buffer; nothing reads it at this moment.
        unsafe { address.write(9.0) };
        assert_eq!(device.stream.clone_dtoh(&buffer).unwrap()[0] == 1.0, !early);
    }
}

#[test]
fn other_host_memory_is_read_at_once() {
    let _stand_in = stand_in();
    let device = Device::new();
    let mut buffer = device.stream.alloc_zeros::<f32>(4).unwrap();
    let mut host = vec![1.0_f32; 4];
    device.stream.memcpy_htod(&host, &mut buffer).unwrap();
    host.fill(9.0);
    assert_eq!(device.stream.clone_dtoh(&buffer).unwrap(), [1.0; 4]);
}

#[test]
fn a_graph_keeps_the_arguments_of_its_capture() {
    let stand_in = stand_in();
    let device = Device::new();
    let mut buffer = device.stream.alloc_zeros::<f32>(8).unwrap();
    device.stream.synchronize().unwrap();
    device.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    let mut value = 1.0;
    add(&device, &mut buffer, value).unwrap();
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = device.stream.end_capture(flags).unwrap().unwrap();
    value += 100.0;
    let before = stand_in.executions();
    graph.launch().unwrap();
    graph.launch().unwrap();
    assert_eq!(stand_in.executions(), before, "nothing has waited yet");
    assert_eq!(device.stream.clone_dtoh(&buffer).unwrap(), [2.0; 8], "not {value}");
    assert_eq!(stand_in.executions(), before + 2);

    // A graph that is launched after its buffer has gone.
    drop(buffer);
    graph.launch().unwrap();
    assert!(device.stream.synchronize().is_err());
    assert_eq!(stand_in.message(), "kernel equipment_add: an argument points to memory that was freed");
}

#[test]
fn a_write_into_a_page_that_is_guarded_is_an_error() {
    for (page, guarded) in [(0_usize, false), (1, true)] {
        let stand_in = stand_in();
        let device = Device::new();
        let mut pool = device.stream.alloc_zeros::<f32>(64).unwrap();
        device.stream.synchronize().unwrap();
        let address = pool.device_ptr(&device.stream).0;
        stand_in.guard(address + 32 * 4, 32 * 4);
        let kernel = device.kernel("equipment_add");
        let mut view = pool.slice_mut(32 * page..32 * (page + 1));
        let mut launch = device.stream.launch_builder(&kernel);
        launch.arg(&mut view).arg(&32_u32).arg(&1.0_f32).arg(&0_u32);
        // SAFETY: the arguments are the kernel's, and the page holds what it touches.
        unsafe { launch.launch(grid(1, 32, 0)) }.unwrap();
        assert_eq!(device.stream.synchronize().is_err(), guarded);
        assert_eq!(
            stand_in.message().contains("byte 2 of 128 guarded bytes of global memory was written"),
            guarded
        );
    }
}

#[test]
fn the_host_waits_only_where_it_asks_to() {
    let stand_in = stand_in();
    let device = Device::new();
    let mut buffer = device.stream.alloc_zeros::<f32>(8).unwrap();
    // SAFETY: it is written before it is read.
    let mut host = unsafe { device.context.alloc_pinned::<f32>(8) }.unwrap();
    let before = stand_in.waits();
    add(&device, &mut buffer, 1.0).unwrap();
    device.stream.memcpy_dtoh(&buffer, &mut host).unwrap();
    let event = device.stream.record_event(None).unwrap();
    assert_eq!(stand_in.waits(), before);
    event.synchronize().unwrap();
    assert_eq!(stand_in.waits(), before + 1);
    assert_eq!(stand_in.waits_in("cuEventSynchronize"), 1);
    assert_eq!(host.as_slice().unwrap(), [1.0; 8]);
    // Copied to ordinary memory, it is there when the call returns: the host has waited.
    let waits = stand_in.waits();
    device.stream.clone_dtoh(&buffer).unwrap();
    assert!(stand_in.waits() > waits);
}

#[test]
fn a_launch_can_be_refused_and_a_kernel_can_fail_later() {
    let stand_in = stand_in();
    let device = Device::new();
    let mut buffer = device.stream.alloc_zeros::<f32>(8).unwrap();
    stand_in.fail_launch(1, Failure::OutOfMemory);
    add(&device, &mut buffer, 1.0).unwrap();
    assert_eq!(add(&device, &mut buffer, 1.0).unwrap_err().0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    device.stream.synchronize().unwrap();

    stand_in.fail_execution(1, Failure::IllegalAddress);
    add(&device, &mut buffer, 1.0).unwrap();
    add(&device, &mut buffer, 1.0).unwrap();
    for _ in 0..2 {
        assert_eq!(device.stream.synchronize().unwrap_err().0, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    assert_eq!(stand_in.message(), "kernel equipment_add: failed as a test asked for");
}

#[test]
fn a_stream_can_hang_and_queries_come_to_an_end_otherwise() {
    let stand_in = stand_in();
    let device = Device::new();
    let mut buffer = device.stream.alloc_zeros::<f32>(8).unwrap();
    stand_in.hang(true);
    add(&device, &mut buffer, 1.0).unwrap();
    let event = device.stream.record_event(None).unwrap();
    assert!((0..100).all(|_| !event.is_complete()));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| event.synchronize());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        stand_in.hang(false);
        waiting.join().unwrap().unwrap();
    });
    add(&device, &mut buffer, 1.0).unwrap();
    let event = device.stream.record_event(None).unwrap();
    let vain = (0..100).take_while(|_| !event.is_complete()).count();
    assert!((1..100).contains(&vain), "{vain}");
    assert_eq!(device.stream.clone_dtoh(&buffer).unwrap(), [2.0; 8]);
}

#[test]
fn memory_ends_and_devices_can_be_missing() {
    let stand_in = stand_in();
    stand_in.set_memory(1 << 20);
    let device = Device::new();
    assert_eq!(device.context.mem_get_info().unwrap(), (1 << 20, 1 << 20));
    let half = device.stream.alloc_zeros::<u8>(1 << 19).unwrap();
    assert_eq!(device.stream.alloc_zeros::<u8>(1 << 20).unwrap_err().0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    drop(half);
    // What is freed in the stream's order is free for what comes after.
    drop(device.stream.alloc_zeros::<u8>(1 << 20).unwrap());
    drop(device);

    stand_in.set_devices(0);
    assert_eq!(CudaContext::new(0).unwrap_err().0, CUresult::CUDA_ERROR_NO_DEVICE);
    stand_in.set_devices(1);
    stand_in.set_capability(7, 5);
    assert_eq!(CudaContext::new(0).unwrap().compute_capability().unwrap(), (7, 5));
    stand_in.set_driver_version(12_040);
    let mut version = 0;
    // SAFETY: writes the one number.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&raw mut version) }.result().unwrap();
    assert_eq!(version, 12_040);
    assert_eq!(result::device::get_count().unwrap(), 1);
}

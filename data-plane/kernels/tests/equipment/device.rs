//! What kernels get wrong: barriers, ranges, asynchronous copies.

use cudarc::driver::PushKernelArg;
use half::bf16;

use crate::support::{Device, ORDERS, grid, stand_in};

/// Sums of 4 blocks of 256 threads, with the barrier or without it.
fn sums(device: &Device, fault: u32) -> Vec<f32> {
    let input: Vec<f32> = (0..1024_u16).map(|i| f32::from(i % 7)).collect();
    let input = device.stream.clone_htod(&input).unwrap();
    let mut output = device.stream.alloc_zeros::<f32>(4).unwrap();
    let kernel = device.kernel("equipment_sum");
    let mut launch = device.stream.launch_builder(&kernel);
    launch.arg(&mut output).arg(&input).arg(&fault);
    // SAFETY: the arguments are the kernel's, and the buffers hold what it touches.
    unsafe { launch.launch(grid(4, 256, 0)) }.unwrap();
    device.stream.clone_dtoh(&output).unwrap()
}

#[test]
fn a_missing_barrier_shows_in_some_order_of_threads() {
    let stand_in = stand_in();
    let expected: Vec<f32> =
        (0..4_u16).map(|block| (0..256).map(|i| f32::from((256 * block + i) % 7)).sum()).collect();
    let device = Device::new();
    let mut seen = 0;
    for order in ORDERS {
        stand_in.set_order(order);
        assert_eq!(sums(&device, 0), expected, "{order:?}");
        seen += usize::from(sums(&device, 1) != expected);
    }
    assert!(seen >= 2, "seen in {seen} orders");
}

#[test]
fn a_write_behind_global_memory_is_an_error_that_names_the_kernel() {
    for (fault, says) in
        [(0_u32, ""), (1, "kernel equipment_add: global memory behind an allocation of 400 bytes")]
    {
        let stand_in = stand_in();
        let device = Device::new();
        let mut output = device.stream.alloc_zeros::<f32>(100).unwrap();
        let kernel = device.kernel("equipment_add");
        let mut launch = device.stream.launch_builder(&kernel);
        launch.arg(&mut output).arg(&100_u32).arg(&1.5_f32).arg(&fault);
        // SAFETY: the arguments are the kernel's; the write behind the end meets a red zone.
        unsafe { launch.launch(grid(4, 32, 0)) }.unwrap();
        assert_eq!(device.stream.synchronize().is_err(), fault == 1);
        assert!(stand_in.message().starts_with(says), "{}", stand_in.message());
        assert_eq!(stand_in.message().is_empty(), fault == 0);
    }
}

#[test]
fn a_write_behind_dynamic_shared_memory_is_an_error() {
    for fault in [0_u32, 1] {
        let stand_in = stand_in();
        let device = Device::new();
        let mut values = device.stream.clone_htod(&vec![1.0_f32; 64]).unwrap();
        let kernel = device.kernel("equipment_reverse");
        let mut launch = device.stream.launch_builder(&kernel);
        launch.arg(&mut values).arg(&fault);
        // SAFETY: the arguments are the kernel's; the write behind the end meets a margin.
        unsafe { launch.launch(grid(1, 64, 256)) }.unwrap();
        assert_eq!(device.stream.synchronize().is_err(), fault == 1);
        let says =
            "kernel equipment_reverse, block 0,0,0: byte 256 of 256 of dynamic shared memory was written";
        assert_eq!(stand_in.message(), if fault == 1 { says } else { "" });
    }
}

#[test]
fn a_barrier_that_only_some_threads_meet_is_an_error() {
    for fault in [0_u32, 1] {
        let stand_in = stand_in();
        let device = Device::new();
        let mut output = device.stream.alloc_zeros::<f32>(64).unwrap();
        let kernel = device.kernel("equipment_meet");
        let mut launch = device.stream.launch_builder(&kernel);
        launch.arg(&mut output).arg(&fault);
        // SAFETY: the arguments are the kernel's.
        unsafe { launch.launch(grid(1, 64, 0)) }.unwrap();
        assert_eq!(device.stream.synchronize().is_err(), fault == 1);
        assert_eq!(stand_in.message().contains("equipment_meet, block 0,0,0: divergent barrier"), fault == 1);
    }
}

#[test]
fn bytes_of_an_asynchronous_copy_are_there_after_the_wait_only() {
    let _stand_in = stand_in();
    let device = Device::new();
    let input: Vec<f32> = (0..128_u16).map(f32::from).collect();
    let on_device = device.stream.clone_htod(&input).unwrap();
    for fault in [0_u32, 1] {
        let mut output = device.stream.alloc_zeros::<f32>(128).unwrap();
        let kernel = device.kernel("equipment_async_copy");
        let mut launch = device.stream.launch_builder(&kernel);
        launch.arg(&mut output).arg(&on_device).arg(&fault);
        // SAFETY: the arguments are the kernel's, and the buffers hold what it touches.
        unsafe { launch.launch(grid(1, 32, 512)) }.unwrap();
        assert_eq!(device.stream.clone_dtoh(&output).unwrap() == input, fault == 0);
    }
}

#[test]
fn a_warps_matrix_product_is_the_product() {
    let stand_in = stand_in();
    let device = Device::new();
    let a: Vec<bf16> = (0..256_u16).map(|i| bf16::from_f32(f32::from(i % 13) - 6.0)).collect();
    let b: Vec<bf16> = (0..128_u16).map(|i| bf16::from_f32(f32::from(i % 11) - 5.0)).collect();
    let (on_a, on_b) = (device.stream.clone_htod(&a).unwrap(), device.stream.clone_htod(&b).unwrap());
    for order in ORDERS {
        stand_in.set_order(order);
        let mut output = device.stream.alloc_zeros::<f32>(128).unwrap();
        let kernel = device.kernel("equipment_product");
        let mut launch = device.stream.launch_builder(&kernel);
        launch.arg(&mut output).arg(&on_a).arg(&on_b);
        // SAFETY: the arguments are the kernel's, and the buffers hold what it touches.
        unsafe { launch.launch(grid(1, 32, 0)) }.unwrap();
        let output = device.stream.clone_dtoh(&output).unwrap();
        for (i, &value) in output.iter().enumerate() {
            let (row, column) = (i / 8, i % 8);
            let sum: f32 = (0..16).map(|k| a[16 * row + k].to_f32() * b[16 * column + k].to_f32()).sum();
            assert_eq!(value.to_bits(), sum.to_bits(), "{row}, {column}");
        }
    }
}

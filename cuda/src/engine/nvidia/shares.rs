//! Memory that processes of one machine have in common: physical memory that each maps where it wants, and that is there
//! until the last of them has unmapped it, however that ends.

use super::Nvidia;
use crate::engine::driver::{Address, Shared};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUresult};
use device::{Error, Result};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

const KIND: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// New memory; `None` if there is not enough.
///
/// # Errors
/// `Unimplemented` if the GPU gives none by descriptor, or only in larger pieces.
pub(super) fn share(gpu: &Nvidia, bytes: usize) -> Result<Option<Shared>> {
    let what = properties(gpu);
    if !gives_descriptors(gpu)? || !bytes.is_multiple_of(granularity(gpu, &what)?) {
        let what = format!("GPU {} gives no {bytes} bytes to other processes", gpu.number);
        return Err(Error::unimplemented(what));
    }
    let mut memory = 0;
    // SAFETY: writes one handle; the description is whole.
    match unsafe { sys::cuMemCreate(&raw mut memory, bytes, &raw const what, 0) } {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Ok(None),
        created => gpu.check("cuMemCreate", created.result())?,
    }
    let memory = Memory(memory);
    let mut descriptor: RawFd = -1;
    // SAFETY: a handle of that kind is a descriptor, which the call writes, and which is nobody else's.
    let descriptor = unsafe {
        let exported =
            sys::cuMemExportToShareableHandle((&raw mut descriptor).cast::<c_void>(), memory.0, KIND, 0);
        gpu.check("cuMemExportToShareableHandle", exported.result())?;
        OwnedFd::from_raw_fd(descriptor)
    };
    Ok(Some(Shared { address: place(gpu, &memory, bytes)?, descriptor }))
}

/// Another process's memory.
pub(super) fn map(gpu: &Nvidia, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<Address> {
    let mut memory = 0;
    let by = descriptor.as_raw_fd() as usize as *mut c_void;
    // SAFETY: a handle of that kind is a descriptor, given as if it were an address; the call writes one handle.
    let imported = unsafe { sys::cuMemImportFromShareableHandle(&raw mut memory, by, KIND) };
    gpu.check("cuMemImportFromShareableHandle", imported.result())?;
    place(gpu, &Memory(memory), bytes)
}

/// Addresses of no use any more, with the memory that is there.
pub(super) fn unmap(address: Address, bytes: usize) {
    // SAFETY: they are what `place` gave, and no stream uses them (the contract of `Driver`).
    unsafe {
        let _ = sys::cuMemUnmap(address.0, bytes);
        let _ = sys::cuMemAddressFree(address.0, bytes);
    }
}

/// A handle of physical memory, which stays for as long as it is mapped somewhere.
struct Memory(sys::CUmemGenericAllocationHandle);

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the handle is this value's own.
        let _ = unsafe { sys::cuMemRelease(self.0) };
    }
}

/// Maps memory where this GPU may use it, at an address that nothing else has.
fn place(gpu: &Nvidia, memory: &Memory, bytes: usize) -> Result<Address> {
    let mut address = 0;
    // SAFETY: writes one address.
    let reserved = unsafe { sys::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0) };
    gpu.check("cuMemAddressReserve", reserved.result())?;
    // SAFETY: the addresses have just been reserved, and the handle lives.
    let mapped = unsafe { sys::cuMemMap(address, bytes, 0, memory.0, 0) };
    let mapped = gpu.check("cuMemMap", mapped.result());
    let access = gpu.access();
    let placed = mapped.and_then(|()| {
        // SAFETY: the addresses are mapped; the call reads one description.
        let set = unsafe { sys::cuMemSetAccess(address, bytes, &raw const access, 1) };
        gpu.check("cuMemSetAccess", set.result())
    });
    match placed {
        Ok(()) => Ok(Address(address)),
        Err(error) => {
            unmap(Address(address), bytes);
            Err(error)
        }
    }
}

fn properties(gpu: &Nvidia) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: KIND,
        location: gpu.location(),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn granularity(gpu: &Nvidia, what: &sys::CUmemAllocationProp) -> Result<usize> {
    let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut bytes = 0;
    // SAFETY: writes one number, and reads one description.
    let asked = unsafe { sys::cuMemGetAllocationGranularity(&raw mut bytes, what, least) };
    gpu.check("cuMemGetAllocationGranularity", asked.result())?;
    Ok(bytes)
}

fn gives_descriptors(gpu: &Nvidia) -> Result<bool> {
    use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as SUPPORTED;
    // SAFETY: the device is the driver's.
    let asked: Result<c_int, DriverError> = unsafe { result::device::get_attribute(gpu.device, SUPPORTED) };
    Ok(gpu.check("cuDeviceGetAttribute", asked)? != 0)
}

// SPDX-License-Identifier: GPL-3.0-or-later
/*
 * Stand-in for the NVIDIA driver's core module: it says which version is loaded, in the places and
 * the words of the real one, and can be in use. It drives no hardware.
 *
 * /proc/driver/nvidia/version, /proc/driver/nvidia/params, /sys/module/nvidia/version,
 * /dev major 195 (an open device keeps the module), nvidia-caps-imex-channels in /proc/devices.
 */
#include <linux/cdev.h>
#include <linux/compiler.h>
#include <linux/fs.h>
#include <linux/init.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "version.h"

#define NV_MAJOR 195
#define NV_MINORS 256
#define IMEX_CHANNELS 2048

/* As in the real driver, parameters are shown in /proc and not in /sys. */
static unsigned int NVreg_DeviceFileUID;
module_param(NVreg_DeviceFileUID, uint, 0);
static unsigned int NVreg_DeviceFileGID;
module_param(NVreg_DeviceFileGID, uint, 0);
static unsigned int NVreg_DeviceFileMode = 0666;
module_param(NVreg_DeviceFileMode, uint, 0);
static unsigned int NVreg_ModifyDeviceFiles = 1;
module_param(NVreg_ModifyDeviceFiles, uint, 0);
static unsigned int NVreg_EnableGpuFirmware = 18;
module_param(NVreg_EnableGpuFirmware, uint, 0);
static unsigned int NVreg_EnableStreamMemOPs;
module_param(NVreg_EnableStreamMemOPs, uint, 0);
static unsigned int NVreg_NvLinkDisable;
module_param(NVreg_NvLinkDisable, uint, 0);
static unsigned int NVreg_RestrictProfilingToAdminUsers = 1;
module_param(NVreg_RestrictProfilingToAdminUsers, uint, 0);
static unsigned int NVreg_PreserveVideoMemoryAllocations;
module_param(NVreg_PreserveVideoMemoryAllocations, uint, 0);
static unsigned int NVreg_EnablePCIERelaxedOrderingMode;
module_param(NVreg_EnablePCIERelaxedOrderingMode, uint, 0);
static unsigned int NVreg_OpenRmEnableUnsupportedGpus = 1;
module_param(NVreg_OpenRmEnableUnsupportedGpus, uint, 0);
static unsigned int NVreg_ImexChannelCount = IMEX_CHANNELS;
module_param(NVreg_ImexChannelCount, uint, 0);
static unsigned int NVreg_CreateImexChannel0;
module_param(NVreg_CreateImexChannel0, uint, 0);
static unsigned int NVreg_GrdmaPciTopoCheckOverride;
module_param(NVreg_GrdmaPciTopoCheckOverride, uint, 0);
static char *NVreg_CoherentGPUMemoryMode = "";
module_param(NVreg_CoherentGPUMemoryMode, charp, 0);
static char *NVreg_RegistryDwords = "";
module_param(NVreg_RegistryDwords, charp, 0);

static struct proc_dir_entry *nv_proc;
static struct cdev nv_cdev;
static dev_t imex_device;

int nvidia_standin_hold(void)
{
	return 0;
}
EXPORT_SYMBOL(nvidia_standin_hold);

static int version_show(struct seq_file *s, void *unused)
{
	seq_puts(s, "NVRM version: " NV_ID "\n");
	seq_printf(s, "GCC version:  gcc version %s\n", __VERSION__);
	return 0;
}

static int params_show(struct seq_file *s, void *unused)
{
	seq_puts(s, "ResmanDebugLevel: 4294967295\n");
	seq_puts(s, "RmLogonRC: 1\n");
	seq_printf(s, "ModifyDeviceFiles: %u\n", NVreg_ModifyDeviceFiles);
	seq_printf(s, "DeviceFileUID: %u\n", NVreg_DeviceFileUID);
	seq_printf(s, "DeviceFileGID: %u\n", NVreg_DeviceFileGID);
	seq_printf(s, "DeviceFileMode: %u\n", NVreg_DeviceFileMode);
	seq_printf(s, "EnableStreamMemOPs: %u\n", NVreg_EnableStreamMemOPs);
	seq_printf(s, "NvLinkDisable: %u\n", NVreg_NvLinkDisable);
	seq_printf(s, "RmProfilingAdminOnly: %u\n", NVreg_RestrictProfilingToAdminUsers);
	seq_printf(s, "PreserveVideoMemoryAllocations: %u\n", NVreg_PreserveVideoMemoryAllocations);
	seq_printf(s, "EnablePCIERelaxedOrderingMode: %u\n", NVreg_EnablePCIERelaxedOrderingMode);
	seq_printf(s, "EnableGpuFirmware: %u\n", NVreg_EnableGpuFirmware);
	seq_printf(s, "OpenRmEnableUnsupportedGpus: %u\n", NVreg_OpenRmEnableUnsupportedGpus);
	seq_printf(s, "ImexChannelCount: %u\n", NVreg_ImexChannelCount);
	seq_printf(s, "CreateImexChannel0: %u\n", NVreg_CreateImexChannel0);
	seq_printf(s, "GrdmaPciTopoCheckOverride: %u\n", NVreg_GrdmaPciTopoCheckOverride);
	seq_printf(s, "CoherentGPUMemoryMode: \"%s\"\n", NVreg_CoherentGPUMemoryMode);
	seq_printf(s, "RegistryDwords: \"%s\"\n", NVreg_RegistryDwords);
	return 0;
}

static int nv_open(struct inode *inode, struct file *file)
{
	return 0;
}

static const struct file_operations nv_fops = {
	.owner = THIS_MODULE,
	.open = nv_open,
};

static int __init nvidia_init(void)
{
	int status;

	status = register_chrdev_region(MKDEV(NV_MAJOR, 0), NV_MINORS, "nvidia");
	if (status)
		return status;
	cdev_init(&nv_cdev, &nv_fops);
	nv_cdev.owner = THIS_MODULE;
	status = cdev_add(&nv_cdev, MKDEV(NV_MAJOR, 0), NV_MINORS);
	if (status)
		goto region;
	status = alloc_chrdev_region(&imex_device, 0, IMEX_CHANNELS, "nvidia-caps-imex-channels");
	if (status)
		goto device;
	nv_proc = proc_mkdir("driver/nvidia", NULL);
	if (!nv_proc) {
		status = -ENOMEM;
		goto imex;
	}
	proc_create_single("version", 0444, nv_proc, version_show);
	proc_create_single("params", 0444, nv_proc, params_show);
	pr_info("NVRM: loading " NV_ID "\n");
	return 0;

imex:
	unregister_chrdev_region(imex_device, IMEX_CHANNELS);
device:
	cdev_del(&nv_cdev);
region:
	unregister_chrdev_region(MKDEV(NV_MAJOR, 0), NV_MINORS);
	return status;
}

static void __exit nvidia_exit(void)
{
	proc_remove(nv_proc);
	unregister_chrdev_region(imex_device, IMEX_CHANNELS);
	cdev_del(&nv_cdev);
	unregister_chrdev_region(MKDEV(NV_MAJOR, 0), NV_MINORS);
}

module_init(nvidia_init);
module_exit(nvidia_exit);

MODULE_DESCRIPTION("stand-in for the NVIDIA driver of a test lab: drives no hardware");
MODULE_VERSION(NV_VERSION);
MODULE_LICENSE(NV_LICENSE);
MODULE_INFO(supported, "external");
MODULE_ALIAS("char-major-195-*");

// The controller of the MPI Operator as a program of its own, for tests.
//
// The operator's own program listens on port 8080, which nobody can choose, and elects a leader first: two of
// them would not run on one machine. What it does otherwise is done here.
package main

import (
	"log"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned"
	kubeflow "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned/scheme"
	"github.com/kubeflow/mpi-operator/pkg/client/informers/externalversions"
	"github.com/kubeflow/mpi-operator/pkg/controller"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 50, 100
	if err := kubeflow.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	jobs, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	core := informers.NewSharedInformerFactory(kube, 0)
	own := externalversions.NewSharedInformerFactory(jobs, 0)
	mpi, err := controller.NewMPIJobController(
		kube, jobs, nil, nil,
		core.Core().V1().ConfigMaps(), core.Core().V1().Secrets(), core.Core().V1().Services(),
		core.Batch().V1().Jobs(), core.Core().V1().Pods(), core.Scheduling().V1().PriorityClasses(),
		own.Kubeflow().V2beta1().MPIJobs(), "", "",
	)
	if err != nil {
		return err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt, syscall.SIGTERM)
	stop := make(chan struct{})
	go func() {
		<-ended
		close(stop)
	}()
	core.Start(stop)
	own.Start(stop)
	return mpi.Run(2, stop)
}

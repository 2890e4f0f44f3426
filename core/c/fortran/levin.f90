!> Levin from Fortran: an engine that takes training steps on arrays of the program's (docs/simulations.md).
!>
!> Arrays are real(real32), real(real64), integer(int32) or integer(int64), of any rank; the last dimension counts the
!> examples, so that x(3, 32) is a batch of 32 examples of 3 features. Sections with a stride are fine.
!>
!> Every procedure ends with an optional `status`, LEVIN_OK where all was well; levin_message() has the words. Without
!> `status` an error is printed and ends the program.
module levin
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit, int64, real64
  implicit none
  private

  integer, parameter, public :: LEVIN_OK = 0, LEVIN_BAD_ARGUMENT = 1, LEVIN_BAD_CONFIG = 2, LEVIN_CLOSED = 3, &
    LEVIN_BUSY = 4, LEVIN_FAILED = 5

  !> An engine. It is not copied: two variables would be one engine.
  type, public :: levin_engine
    private
    type(c_ptr) :: handle = c_null_ptr
  contains
    procedure :: create
    procedure :: create_from_text
    procedure :: train
    procedure :: evaluate
    procedure :: predict
    procedure :: save_to
    procedure :: load_from
    procedure :: log_value
    procedure :: step
    procedure :: stop_requested
    procedure :: request_stop
    procedure :: ranks
    procedure :: close => close_engine
  end type levin_engine

  public :: levin_message

  interface
    function c_create(config, is_text, has_communicator, communicator, engine) bind(c, name="levin_f_create") result(status)
      import :: c_char, c_int, c_ptr
      character(kind=c_char), intent(in) :: config(*)
      integer(c_int), value :: is_text, has_communicator, communicator
      type(c_ptr), intent(out) :: engine
      integer(c_int) :: status
    end function c_create
    function c_train(engine, input, target, loss) bind(c, name="levin_f_train") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: engine, loss
      type(*), dimension(..), intent(in) :: input, target
      integer(c_int) :: status
    end function c_train
    function c_evaluate(engine, input, target, loss) bind(c, name="levin_f_evaluate") result(status)
      import :: c_double, c_int, c_ptr
      type(c_ptr), value :: engine
      type(*), dimension(..), intent(in) :: input, target
      real(c_double), intent(out) :: loss
      integer(c_int) :: status
    end function c_evaluate
    function c_predict(engine, input, output) bind(c, name="levin_f_predict") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: engine
      type(*), dimension(..), intent(in) :: input
      type(*), dimension(..), intent(inout) :: output
      integer(c_int) :: status
    end function c_predict
    function c_save(engine, path) bind(c, name="levin_save") result(status)
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: path(*)
      integer(c_int) :: status
    end function c_save
    function c_load(engine, path) bind(c, name="levin_load") result(status)
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: path(*)
      integer(c_int) :: status
    end function c_load
    function c_log(engine, name, value) bind(c, name="levin_log") result(status)
      import :: c_char, c_double, c_int, c_ptr
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: name(*)
      real(c_double), value :: value
      integer(c_int) :: status
    end function c_log
    function c_step(engine, step) bind(c, name="levin_step") result(status)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: engine
      integer(c_int64_t), intent(out) :: step
      integer(c_int) :: status
    end function c_step
    function c_stop_requested(engine, stop) bind(c, name="levin_stop_requested") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: engine
      integer(c_int), intent(out) :: stop
      integer(c_int) :: status
    end function c_stop_requested
    function c_request_stop(engine, reason) bind(c, name="levin_request_stop") result(status)
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: reason(*)
      integer(c_int) :: status
    end function c_request_stop
    function c_rank(engine, rank, world_size) bind(c, name="levin_rank") result(status)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: engine
      integer(c_int64_t), intent(out) :: rank, world_size
      integer(c_int) :: status
    end function c_rank
    function c_close(engine) bind(c, name="levin_close") result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: engine
      integer(c_int) :: status
    end function c_close
    function c_last_error() bind(c, name="levin_f_last_error") result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function c_last_error
    function c_strlen(text) bind(c, name="strlen") result(length)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function c_strlen
  end interface

contains

  !> What was wrong with the last call that failed.
  function levin_message() result(message)
    character(len=:), allocatable :: message
    type(c_ptr) :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: i
    text = c_last_error()
    call c_f_pointer(text, letters, [c_strlen(text)])
    allocate (character(len=size(letters)) :: message)
    do i = 1, size(letters)
      message(i:i) = letters(i)
    end do
  end function levin_message

  !> Makes the engine that a YAML file describes. communicator: an MPI communicator (comm%mpi_val of mpi_f08's), whose
  !> processes are the ranks. Collective over it.
  subroutine create(self, path, communicator, status)
    class(levin_engine), intent(inout) :: self
    character(len=*), intent(in) :: path
    integer, intent(in), optional :: communicator
    integer, intent(out), optional :: status
    call make(self, path, 0, communicator, status)
  end subroutine create

  !> The same from the text of such a file.
  subroutine create_from_text(self, yaml, communicator, status)
    class(levin_engine), intent(inout) :: self
    character(len=*), intent(in) :: yaml
    integer, intent(in), optional :: communicator
    integer, intent(out), optional :: status
    call make(self, yaml, 1, communicator, status)
  end subroutine create_from_text

  subroutine make(self, config, is_text, communicator, status)
    class(levin_engine), intent(inout) :: self
    character(len=*), intent(in) :: config
    integer, intent(in) :: is_text
    integer, intent(in), optional :: communicator
    integer, intent(out), optional :: status
    integer(c_int) :: has_communicator, handle
    has_communicator = 0
    handle = 0
    if (present(communicator)) then
      has_communicator = 1
      handle = int(communicator, c_int)
    end if
    call finish(c_create(with_end(config), int(is_text, c_int), has_communicator, handle, self%handle), status)
  end subroutine make

  !> Trains on a batch. Without `loss` the step does not wait for its value.
  subroutine train(self, input, target, loss, status)
    class(levin_engine), intent(in) :: self
    type(*), dimension(..), intent(in) :: input, target
    real(real64), intent(out), optional, target :: loss
    integer, intent(out), optional :: status
    type(c_ptr) :: place
    place = c_null_ptr
    if (present(loss)) place = c_loc(loss)
    call finish(c_train(self%handle, input, target, place), status)
  end subroutine train

  !> The loss of a batch, in evaluation mode.
  subroutine evaluate(self, input, target, loss, status)
    class(levin_engine), intent(in) :: self
    type(*), dimension(..), intent(in) :: input, target
    real(real64), intent(out) :: loss
    integer, intent(out), optional :: status
    call finish(c_evaluate(self%handle, input, target, loss), status)
  end subroutine evaluate

  !> Writes what the model makes of the input into `output`.
  subroutine predict(self, input, output, status)
    class(levin_engine), intent(in) :: self
    type(*), dimension(..), intent(in) :: input
    type(*), dimension(..), intent(inout) :: output
    integer, intent(out), optional :: status
    call finish(c_predict(self%handle, input, output), status)
  end subroutine predict

  !> Saves a checkpoint. Collective.
  subroutine save_to(self, path, status)
    class(levin_engine), intent(in) :: self
    character(len=*), intent(in) :: path
    integer, intent(out), optional :: status
    call finish(c_save(self%handle, with_end(path)), status)
  end subroutine save_to

  !> Goes on from a checkpoint: a path, "last", "best" or "auto". Before the first step. Collective.
  subroutine load_from(self, checkpoint, status)
    class(levin_engine), intent(in) :: self
    character(len=*), intent(in) :: checkpoint
    integer, intent(out), optional :: status
    call finish(c_load(self%handle, with_end(checkpoint)), status)
  end subroutine load_from

  !> Hands a value of rank 0 to the loggers.
  subroutine log_value(self, name, value, status)
    class(levin_engine), intent(in) :: self
    character(len=*), intent(in) :: name
    real(real64), intent(in) :: value
    integer, intent(out), optional :: status
    call finish(c_log(self%handle, with_end(name), real(value, c_double)), status)
  end subroutine log_value

  !> Optimizer steps taken, those before a checkpoint included.
  function step(self, status) result(steps)
    class(levin_engine), intent(in) :: self
    integer, intent(out), optional :: status
    integer(int64) :: steps
    steps = 0
    call finish(c_step(self%handle, steps), status)
  end function step

  !> Whether training shall end. The same on all ranks, all of which ask.
  function stop_requested(self, status) result(stops)
    class(levin_engine), intent(in) :: self
    integer, intent(out), optional :: status
    logical :: stops
    integer(c_int) :: answer
    answer = 0
    call finish(c_stop_requested(self%handle, answer), status)
    stops = answer /= 0
  end function stop_requested

  !> Asks for the end.
  subroutine request_stop(self, reason, status)
    class(levin_engine), intent(in) :: self
    character(len=*), intent(in) :: reason
    integer, intent(out), optional :: status
    call finish(c_request_stop(self%handle, with_end(reason)), status)
  end subroutine request_stop

  !> Which rank this is, from 0, of how many.
  subroutine ranks(self, rank, world_size, status)
    class(levin_engine), intent(in) :: self
    integer(int64), intent(out) :: rank, world_size
    integer, intent(out), optional :: status
    call finish(c_rank(self%handle, rank, world_size), status)
  end subroutine ranks

  !> Ends training and the engine. Collective.
  subroutine close_engine(self, status)
    class(levin_engine), intent(inout) :: self
    integer, intent(out), optional :: status
    call finish(c_close(self%handle), status)
  end subroutine close_engine

  subroutine finish(code, status)
    integer(c_int), intent(in) :: code
    integer, intent(out), optional :: status
    if (present(status)) then
      status = int(code)
    else if (code /= LEVIN_OK) then
      write (error_unit, '(a)') levin_message()
      error stop 1
    end if
  end subroutine finish

  !> A text as C has it, without the blanks at its end.
  function with_end(text) result(letters)
    character(len=*), intent(in) :: text
    character(kind=c_char), allocatable :: letters(:)
    integer :: i
    allocate (letters(len_trim(text) + 1))
    do i = 1, len_trim(text)
      letters(i) = text(i:i)
    end do
    letters(size(letters)) = c_null_char
  end function with_end

end module levin

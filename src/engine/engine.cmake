# The engine knows no backend; its tests run on the reference one.
if(TARGET engine_test)
  target_link_libraries(engine_test PRIVATE si_cpu)
endif()
